"""Runs one prediction for the command line and prints its output on stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from pipeline.package.command_inputs import BadInputError, read_inputs, read_schema
from pipeline.paths import ROOT
from pipeline.weights.default_weights import ensure_weights

DONE, FAILED, WRONG_INPUT = 0, 1, 2  # exit codes


def print_prediction(pairs: Sequence[str], *, as_json: bool) -> int:
    """Predict and print.

    Args:
        pairs: inputs as `name=value` or `name=@file`.
        as_json: print the whole prediction instead of only the output.

    Returns:
        The exit code; errors are printed on stderr.
    """
    try:
        inputs = read_inputs(list(pairs), read_schema())
    except BadInputError as error:
        return _failed(WRONG_INPUT, error)
    ensure_weights()
    os.chdir(ROOT)  # the path of the weights in the settings is relative to it
    from pipeline.package.local_prediction import predict_locally  # slow to import, so only once the inputs are valid
    from serving.errors import EngineNotAvailableError, InvalidRequestError, ServingError, SettingError
    from tasks.errors import InputError, TaskError

    try:
        prediction = predict_locally(inputs)
    except (TaskError, ServingError, ValueError) as error:
        is_setting = isinstance(error, EngineNotAvailableError | SettingError | ValueError)
        return _failed(WRONG_INPUT if is_setting else FAILED, error)
    if as_json:
        print(json.dumps(prediction.to_json(), indent=2, ensure_ascii=False))
    else:
        sys.stderr.write(prediction.logs)
    if prediction.cause is not None:
        is_input = isinstance(prediction.cause, InputError | InvalidRequestError)
        return _failed(WRONG_INPUT if is_input else FAILED, prediction.cause)
    if not as_json:
        print("".join(prediction.output))
    return DONE


def _failed(code: int, error: Exception) -> int:
    sys.stderr.write(f"{error}\n")
    return code
