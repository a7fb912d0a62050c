"""Which token follows in an answer when the question says so.

Owns: a table from the last tokens of an answer, and a cue in its question, to the token that followed.
Knows nothing of requests, grammars or models. A cue is one, two or three tokens in a row of the question:
after `"time_range": ` it is `last hour` that tells 3 from 8. Only contexts in which answers differ are
kept, and only cues that tell more than the context alone (Yarowsky 1994's decision lists, for drafts).

    table = CueTable.build(pairs)
    for token, share in table.successors(context, cues_of(question)): ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from serving.ngrams import START, Context, refuse_others

CUE_TABLE = "draft.cues"  # beside the checkpoint
_ORDERS = (1, 2, 3)  # of a cue
_CONTEXT = 6  # tokens of the answer, or all of it while it is shorter
_CERTAIN = 0.9  # a context that one token follows so often needs no cue
_MIN_CONTEXT, _MIN_CUE = 20, 5  # times seen
_CAUTION = 3.0  # so many further times, the token is taken to follow as often as it does without the cue
_MARGIN = 0.05
_COLUMNS = ("context", "cue", "token", "share")  # of a file; contexts by number
_DTYPES = (np.uint16, np.int64, np.int32, np.uint8)

Pair = tuple[Sequence[int], Sequence[int]]  # question and answer
_Counts = dict[int, Counter[int]]
_Followed = tuple[int, int, dict[int, int]]  # context, cue, how often each token followed
_Row = tuple[int, int, int, int]  # context, cue, token, share in 255ths


def cues_of(question: Iterable[int]) -> set[int]:
    """The cues in a question, given as token ids without leading spaces."""
    context, cues = Context(), set[int]()
    for token in question:
        context.append(token)
        cues.update(context.keys(_ORDERS))
    return cues


def _key(context: Context) -> int:
    return context.key(min(_CONTEXT, len(context)))


class CueTable:
    """What followed a context when a cue was in the question, with how often that was so."""

    def __init__(self, rows: Iterable[_Row]) -> None:
        self._rows: dict[int, dict[int, tuple[int, int]]] = {}
        for context, cue, token, share in rows:
            self._rows.setdefault(context, {})[cue] = (token, share)
        self._known = {cue for cues in self._rows.values() for cue in cues}

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def known(self, cues: set[int]) -> list[int]:
        """Those of `cues` that the table has, to ask for again and again."""
        return sorted(cues & self._known)

    def successors(self, context: Context, cues: Iterable[int]) -> Iterable[tuple[int, int]]:
        """(token, share in 255ths) after `context`, each token once with what its best cue says."""
        rows = self._rows.get(_key(context))
        if rows is None:
            return ()
        best: dict[int, int] = {}
        for cue in cues:
            row = rows.get(cue)
            if row is not None and row[1] > best.get(row[0], 0):
                best[row[0]] = row[1]
        return best.items()

    @classmethod
    def build(cls, pairs: Sequence[Pair], *, max_rows: int = 30_000) -> CueTable:
        """Count pairs of a question without leading spaces and its answer; the most useful rows are kept."""
        alone: _Counts = {}
        for _, answer in pairs:
            for key, token in _steps(answer):
                alone.setdefault(key, Counter())[token] += 1
        alone = {key: counter for key, counter in alone.items() if _is_open(counter)}
        return cls(row for _, row in sorted(_useful(alone, _count(pairs, alone)))[:max_rows])

    def save(self, path: Path) -> None:
        """Write a file that is the same for the same table."""
        contexts = sorted(self._rows)
        numbered = enumerate(self._rows[key] for key in contexts)
        rows = [(i, cue, *row) for i, cues in numbered for cue, row in sorted(cues.items())]
        columns = np.array(rows, np.int64).reshape(len(rows), 4).T
        arrays = {"contexts": np.array(contexts, np.int64)}
        for name, column, dtype in zip(_COLUMNS, columns, _DTYPES, strict=True):
            arrays[name] = column.astype(dtype)
        save_file(arrays, path)

    @classmethod
    def load(cls, path: Path) -> CueTable:
        """Read what `save` wrote.

        Raises:
            WeightsError: the file is something else.
        """
        with refuse_others(path):
            arrays = load_file(path)
            contexts = arrays["contexts"][arrays["context"]].tolist()
            return cls(zip(contexts, *(arrays[name].tolist() for name in _COLUMNS[1:]), strict=True))


def _steps(answer: Sequence[int]) -> Iterable[tuple[int, int]]:
    context = Context((START,))
    for token in answer:
        yield _key(context), token
        context.append(token)


def _is_open(counter: Counter[int]) -> bool:
    total = counter.total()
    return total >= _MIN_CONTEXT and max(counter.values()) < _CERTAIN * total


def _count(pairs: Sequence[Pair], alone: _Counts) -> Iterator[_Followed]:
    """What followed open contexts with each cue that was there often enough."""
    frequency = Counter(cue for question, _ in pairs for cue in cues_of(question))
    columns: list[list[int]] = [[], [], []]
    for question, answer in pairs:
        cues = [cue for cue in cues_of(question) if frequency[cue] >= _MIN_CUE]
        for key, token in _steps(answer):
            if key in alone:
                columns[0] += [key] * len(cues)
                columns[1] += cues
                columns[2] += [token] * len(cues)
    if not columns[0]:
        return
    names, numbers = zip(*(np.unique(column, return_inverse=True) for column in columns), strict=True)
    sizes = [len(column) for column in names]
    seen, counts = np.unique(np.ravel_multi_index(numbers, sizes), return_counts=True)
    parts = np.unravel_index(seen, sizes)
    keys, cues, tokens = (name[part] for name, part in zip(names, parts, strict=True))
    starts = np.flatnonzero(np.diff(seen // sizes[2], prepend=-1))
    often = np.add.reduceat(counts, starts) >= _MIN_CUE
    ends = np.append(starts[1:], len(seen))
    for start, end in zip(starts[often].tolist(), ends[often].tolist(), strict=True):
        followed = zip(tokens[start:end].tolist(), counts[start:end].tolist(), strict=True)
        yield int(keys[start]), int(cues[start]), dict(followed)


def _useful(alone: _Counts, counts: Iterable[_Followed]) -> Iterator[tuple[float, _Row]]:
    """Rows that tell more than their context alone; those that do so most often sort first."""
    for key, cue, followed in counts:
        total, seen = alone[key].total(), sum(followed.values())
        usual = max(alone[key].values()) / total
        token = min(followed, key=lambda token: (-followed[token], token))
        share = (followed[token] + _CAUTION * alone[key][token] / total) / (seen + _CAUTION)
        if share > usual + _MARGIN:
            yield seen * (usual - share), (key, cue, token, int(255 * share))
