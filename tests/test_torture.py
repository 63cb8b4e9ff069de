"""A slice of `make torture`: every attack a few times, always by the same seeds."""

import pytest

from torture.__main__ import ATTACKS
from torture.attack import remove_prepared, run_trial

pytestmark = pytest.mark.slow
# Trainings take seconds a trial, the others a fraction of one.
TRIALS = {
    "kills": 1,  # of which train/test_resume.py has dozens
    "races": 2,
    "full-disks": 3,
    "no-links": 2,
    "token-cache": 2,
    "checkpoints": 2,
    "run-folders": 6,
    "forged-records": 5,
    "studies": 20,
    "model-folders": 12,
    "data-files": 30,
}


@pytest.fixture(scope="module", autouse=True)
def tidy_up():
    yield
    remove_prepared()


@pytest.mark.parametrize("name", ATTACKS)
def test_it_survives(name):
    attack = ATTACKS[name]
    if why := attack.is_possible():
        pytest.skip(why)
    failed = [trial for number in range(TRIALS[name]) if (trial := run_trial(attack, f"0-{number}")).problem]
    assert not failed, "\n\n".join(f"{trial.repeat}\n{trial.problem}" for trial in failed)
