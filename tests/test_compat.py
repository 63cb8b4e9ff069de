"""`make compat`: what it runs is there, what it says of a family, and what it need not run again."""

import os

import compat

CASE = '<testcase classname="tests.contract.test_contract" name="test_one[{}]">{}</testcase>'
SKIPPED = '<skipped message="not in transformers 4.48"/>'


def written(path, *cases):
    path.write_text(f"<testsuites>{''.join(CASE.format(*case) for case in cases)}</testsuites>", encoding="utf-8")
    return path


def test_every_test_that_is_named_is_there():
    assert [path for path in compat.TESTS if not (compat.ROOT / "tests" / path).exists()] == []


def test_a_family_has_passed_or_failed_or_is_not_there(tmp_path):
    results = written(
        tmp_path / "results.xml", ("q-bert", ""), ("q-qwen3", SKIPPED), ("q-gpt2", "<failure/>"), ("k-gpt2", "")
    )
    found = compat.outcomes(results, ["bert", "qwen3", "gpt2", "t5"])
    assert [found[name] for name in ("bert", "qwen3", "gpt2")] == ["passed 1", "not in it", "FAILED 1 of 2"]
    assert found["t5"] == "FAILED 0 of 0", "a family that no test was run on has not passed"


def test_only_what_has_passed_with_these_files_is_not_run_again(tmp_path):
    results = tmp_path / "results.xml"
    assert not compat.has_passed(results)
    assert compat.has_passed(written(results, ("q-bert", "")))
    assert not compat.has_passed(written(results, ("q-bert", "<failure/>")))
    os.utime(written(results, ("q-bert", "")), (0, 0))
    assert not compat.has_passed(results)
