"""The model hub's refusals of an upload, as errors that say what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

from httpx2 import HTTPError
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

from pipeline.publish.errors import PublishError
from serving.fetching.retry import TRY_LATER, RetryableError, retry_after


@contextmanager
def explained(repo: str) -> Iterator[None]:
    """Raise what the hub says as `PublishError` or `RetryableError`.

    The library's own messages are not passed on: they hold request ids and signed addresses.
    """
    try:
        yield
    except HFValidationError as error:
        raise PublishError(f"hf://{repo}: not a repository's name on the hub") from error
    except HfHubHTTPError as error:
        raise _refusal(repo, error.response.status_code, error.response.headers.get("retry-after")) from error
    except OfflineModeIsEnabled as error:
        raise PublishError("HF_HUB_OFFLINE keeps the hub from being reached; unset it to push") from error
    except HTTPError as error:
        raise RetryableError("the connection to the hub failed") from error
    except (ConnectionError, TimeoutError) as error:  # hf-xet's; a status is only in its text
        raise _broken_xet(repo, error) from error
    except RuntimeError as error:  # the uploads of large files wrap what happened
        cause = error.__cause__
        if isinstance(cause, HfHubHTTPError):
            raise _refusal(repo, cause.response.status_code, cause.response.headers.get("retry-after")) from error
        raise RetryableError(f"an upload broke ({type(cause or error).__name__})") from error
    except json.JSONDecodeError as error:  # the page of a proxy, or of a hub that is down
        raise RetryableError("the hub's answer is not JSON") from error
    except ValueError as error:  # a card that the hub does not take, or an answer that is none
        raise PublishError(f"hf://{repo}: the hub refuses the files: {str(error)[:300]}") from error


def _broken_xet(repo: str, error: OSError) -> Exception:
    status = re.search(r"status client error \((\d{3})", str(error))
    if status is None:
        return RetryableError("the upload through Xet broke")
    if status[1] == "404":
        return PublishError("this hub stores no large files through Xet (404): set HF_HUB_DISABLE_XET=1 and push again")
    return _refusal(repo, int(status[1]), None)


def _refusal(repo: str, status: int, after: str | None) -> Exception:
    organisation = repo.partition("/")[0]
    if status in TRY_LATER:
        return RetryableError(f"the hub answered {status}", retry_after(after))
    return PublishError(
        {
            401: "the hub does not take your login (401): run `hf auth login` with a token that may write",
            402: f"the hub asks for payment (402): {organisation} has no room for this; see its billing settings",
            403: f"your login may not write to {organisation} (403): use a token with write access to it",
            404: f"hf://{repo} is not there, or your login may not see it (404): check the name and `hf auth whoami`",
            409: f"hf://{repo} is being changed by somebody else (409): wait for them, and push again",
            412: f"hf://{repo} was changed while this was sending (412): push again, what was sent is not sent twice",
            413: "the hub says that this is too large (413): ask for more room on the repository's page",
        }.get(status, f"the hub answered {status}; push again later, or see its status page")
    )
