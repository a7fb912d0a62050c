"""A checkpoint with another task file: whose files are taken where both have one of the same name."""

from pathlib import Path

from pipeline.evaluate.task_folder import task_folder


def test_the_task_keeps_the_files_it_names_and_the_checkpoint_all_others(tmp_path: Path) -> None:
    for owner in ("checkpoint", "task"):
        (tmp_path / owner).mkdir()
        for name in ("schema.json", "config.json"):
            (tmp_path / owner / name).write_text(owner)
        (tmp_path / owner / "task.json").write_text('{"schema_file": "schema.json"}')
    (tmp_path / "task" / "words.json").write_text("task")
    with task_folder(tmp_path / "checkpoint", tmp_path / "task" / "task.json") as folder:
        found = {path.name: path.read_text() for path in folder.iterdir()}
    assert found["schema.json"] == found["words.json"] == "task"
    assert found["config.json"] == "checkpoint"
