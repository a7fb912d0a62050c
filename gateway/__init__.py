"""The gateway: HTTP APIs in front of one or more Cog servers, in a process of its own.

The path of a request:

1. `app.py` lists the APIs. Around all of them are the log, the headers and the checks of `http/`.
2. A handler of an API takes the request: `replicate/routes.py`, `openai/routes.py`, `openai/responses/routes.py`,
   `mcp/routes.py`, `pages/routes.py`. `cog_api.py` passes Cog's own protocol on, and nothing of what follows happens.
   `Depends(get_gateway)` (`gateway.py`) asks `keys/callers.py` who calls, and gives the handler the parts of the
   running gateway.
3. The handler reads the body (`http/bodies.py`), compares it with the model's schema (`upstream/model_info.py`), and
   makes a `Prediction` (`predictions/prediction.py`), which `predictions/runner.py` starts.
4. The runner looks into the cache of answers (`cache/`), keeps the prediction (`predictions/store.py`) and gives it a
   task (`predictions/prediction_task.py`). The task waits for a server of `upstream/pool.py` and asks it through
   `upstream/model_server.py`.
5. The server's events go into a `LivePrediction` (`predictions/live_prediction.py`). Any number of readers follow it,
   each from its own position: the handler that answers, streams, webhooks (`replicate/webhooks.py`), figures
   (`metrics/`), spans (`tracing/`) and the log.
6. At the end the final prediction is kept first and shown then.

What people say of answers is in `corrections/`: an API and a file of its own, which outlives the predictions. `shadow/`
asks a candidate version the same as the servers, and keeps where it answers something else.
"""
