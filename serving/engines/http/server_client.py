"""A client of vLLM's HTTP server: which models it has, the body of a request, and streamed token ids."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp

from serving.clients.answer import EngineOutput
from serving.clients.vllm_parameters import vllm_parameters
from serving.constraints import CallsConstraint
from serving.errors import EngineBusyError, EngineDeadError, InvalidRequestError, SettingError
from serving.grammar import check_constraint
from serving.grammar.grammar_text import grammar_text
from serving.text import Tokenizer
from serving.types import GenerationRequest, TokenLogprob

_DONE = b"[DONE]"
_ID = "token_id:"  # how vLLM writes a token in log probabilities


async def read_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each event of a body, divided anywhere, until the last, which says that the stream is done."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data = line.removeprefix(b"data:").strip()
                if data == _DONE:
                    return
                yield data


def read_output(content: Mapping[str, Any], num_logprobs: int | None) -> EngineOutput | None:
    """The tokens of an event; None if it has only numbers of tokens.

    Raises:
        KeyError, TypeError, ValueError: it is not of the form that vLLM gives.
    """
    if not content["choices"]:
        return None
    (choice,) = content["choices"]
    token_ids = [int(token) for token in choice["token_ids"]]
    reason = choice.get("finish_reason")
    return EngineOutput(
        token_ids,
        None if reason is None else str(reason),
        None if num_logprobs is None else _logprobs(token_ids, choice["logprobs"], num_logprobs),
    )


def _logprobs(token_ids: list[int], logprobs: Mapping[str, Any], count: int) -> list[TokenLogprob]:
    """vLLM gives `count` likeliest tokens, and the chosen one too if it is not among them."""
    result = []
    for token_id, logprob, top in zip(token_ids, logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        entries = {int(key.removeprefix(_ID)): float(value) for key, value in (top or {}).items()}
        ranked = sorted(entries.items(), key=lambda entry: -entry[1])
        result.append(TokenLogprob(token_id, float(logprob), tuple(ranked[:count])))
    return result


def request_body(
    request: GenerationRequest, model: str, *, tokenizer: Tokenizer, max_model_len: int
) -> dict[str, object]:
    """A streamed request for token ids; `model` is the server's name of the model or adapter.

    `check_request` has accepted the request, and its constraint compiles.

    Raises:
        InvalidRequestError: vLLM does not support a parameter, or would change it.
    """
    body: dict[str, object] = {
        "model": model,
        "prompt": list(request.prompt_token_ids),
        "request_id": request.request_id,
        "stream": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,  # in log probabilities
        # Whether the server verifies drafts is not known. If it does, it refuses min_p itself.
        **vllm_parameters(request, tokenizer=tokenizer, max_model_len=max_model_len, speculates=False),
    }
    if request.constraint is not None:
        if isinstance(request.constraint, CallsConstraint):
            grammar = check_constraint(request.constraint)  # its schemas may have to be rewritten
        else:
            grammar = grammar_text(request.constraint)
        body["structured_outputs"] = {"grammar": grammar}
    return body


_BUSY = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_CALLERS_FAULT = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY)
_CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ServedModels:
    """What a server serves.

    Args:
        base: name of the model.
        adapters: names of its LoRA adapters.
        max_model_len: maximum number of prompt and output tokens; None if the server does not say.
    """

    base: str
    adapters: frozenset[str]
    max_model_len: int | None


class ServerClient:
    """One server; belongs to one event loop. Made by `open`.

    Args:
        url: its address, without /v1.
        session: connects to that address, with the key.
    """

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session

    @classmethod
    async def open(cls, url: str, key: str | None) -> ServerClient:
        """A client; nothing is asked yet."""
        address = url.rstrip("/").removesuffix("/v1")
        session = aiohttp.ClientSession(
            f"{address}/",
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            connector=aiohttp.TCPConnector(limit=0),
        )
        return cls(address, session)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def models(self, name: str | None) -> ServedModels:
        """Choose the model of this name; None is the server's only one.

        Raises:
            SettingError: there is no such model, or there are several.
            EngineDeadError: the server cannot be reached, or its answer is not understood.
        """
        try:
            async with self._session.get("v1/models") as response:
                text = await response.text()
                if response.status != HTTPStatus.OK:
                    raise self._refusal(response.status, text)
            listed = json.loads(text)["data"]
            bases = {model["id"]: model.get("max_model_len") for model in listed if model.get("parent") is None}
            parents = {model["id"]: model["parent"] for model in listed if model.get("parent") is not None}
        except aiohttp.ClientError as error:
            raise self._broken(error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise EngineDeadError(f"{self.url}/v1/models is no list of models: {error!r}") from error
        if name is None and len(bases) == 1:
            (name,) = bases
        if name is None or name not in bases:
            given = "ENGINE_MODEL is not set" if name is None else f"ENGINE_MODEL={name} is not served"
            raise SettingError(f"{given}; {self.url} has: {', '.join(sorted(bases)) or 'none'}")
        return ServedModels(name, frozenset(key for key, parent in parents.items() if parent == name), bases[name])

    async def outputs(self, body: Mapping[str, Any]) -> AsyncIterator[EngineOutput]:
        """Generate; closing the iterator closes the connection, which aborts the request.

        Raises:
            InvalidRequestError: the server refuses the request.
            EngineBusyError: it has no room.
            EngineDeadError: it cannot be reached, failed, or is none that gives token ids.
        """
        try:
            async with self._session.post("v1/completions", json=body) as response:
                if response.status != HTTPStatus.OK:
                    raise self._refusal(response.status, await response.text())
                async for event in read_events(response.content.iter_any()):
                    output = self._read(event, body.get("logprobs"))
                    if output is not None:
                        yield output
                        if output.finish_reason is not None:
                            return
        except aiohttp.ClientError as error:
            raise self._broken(error) from error
        raise EngineDeadError(f"{self.url} ended the answer before its last token")

    def _read(self, event: bytes, num_logprobs: int | None) -> EngineOutput | None:
        try:
            content: Any = json.loads(event)
            if "error" not in content:
                return read_output(content, num_logprobs)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise EngineDeadError(
                f"{self.url} streams no token ids ({error!r}); ENGINE=http needs a server with vLLM's field "
                "return_token_ids (vLLM 0.32)"
            ) from error
        raise EngineDeadError(f"{self.url} failed: {json.dumps(content['error'], ensure_ascii=False)[:500]}")

    def _refusal(self, status: int, text: str) -> Exception:
        if status in _CALLERS_FAULT:
            return InvalidRequestError(f"{self.url} refused the request: {_message(text)}")
        if status in _BUSY:
            return EngineBusyError(f"busy: {self.url} has no room; try again later")
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return EngineDeadError(f"{self.url} refuses the key ({status}); set ENGINE_KEY")
        return EngineDeadError(f"{self.url} answered {status}: {_message(text)}")

    def _broken(self, error: aiohttp.ClientError) -> EngineDeadError:
        return EngineDeadError(f"{self.url} cannot be reached: {type(error).__name__} {error}".rstrip())


def _message(text: str) -> str:
    """The message of an error of OpenAI's API, or the text itself."""
    try:
        return str(json.loads(text)["error"]["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return text[:500]
