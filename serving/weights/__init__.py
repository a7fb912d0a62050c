"""The lock file of the weights, and the check that the files on disk match it."""

from serving.weights.lock import (
    LockedFile,
    LockedSource,
    LockedWeights,
    WeightsLock,
    lock_of,
    locked_file,
    set_digest,
)
from serving.weights.verify import (
    VerifiedWeights,
    check_contents,
    could_run_code,
    hash_files,
    list_files,
    lock_files,
    verify,
)

__all__ = [
    "LockedFile",
    "LockedSource",
    "LockedWeights",
    "VerifiedWeights",
    "WeightsLock",
    "check_contents",
    "could_run_code",
    "hash_files",
    "list_files",
    "lock_files",
    "lock_of",
    "locked_file",
    "set_digest",
    "verify",
]
