"""Fast dropout has the distribution of torch's, and is a function of the generator."""

import pytest
import torch
from torch import nn

from oelm.models.dropout import Dropout, fast_dropout, use_fast_dropout_


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_share_size_and_mean(p):
    torch.manual_seed(0)
    size = 400_003  # not a multiple of what comes with a draw
    found = fast_dropout(torch.ones(size), p)
    assert found.unique().tolist() == [0.0, pytest.approx(1 / (1 - p), rel=1e-4)]
    share = (found == 0).double().mean().item()
    assert abs(share - p) < 5 * (p * (1 - p) / size) ** 0.5
    assert found.double().mean().item() == pytest.approx(1, abs=0.02)


def test_neighbors_are_independent():
    torch.manual_seed(1)
    dropped = (fast_dropout(torch.ones(400_000), 0.5) == 0).double() - 0.5
    for lag in (1, 2, 3, 4, 5, 8, 64):
        assert abs((dropped[lag:] * dropped[:-lag]).mean().item()) < 5 * 0.25 / 400_000**0.5


def test_the_gradient_goes_through_what_is_kept():
    torch.manual_seed(2)
    given = torch.randn(50, 7, requires_grad=True)
    found = fast_dropout(given, 0.4)
    found.sum().backward()
    torch.testing.assert_close(given.grad, found.detach() / given.detach())


def test_the_generator_decides():
    def drawn(seed):
        torch.manual_seed(seed)
        return fast_dropout(torch.ones(3, 5, 2), 0.5)

    assert torch.equal(drawn(3), drawn(3))
    assert not torch.equal(drawn(3), drawn(4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_it_keeps_type_and_shape(dtype):
    found = fast_dropout(torch.ones(4, 3, dtype=dtype), 0.25)
    assert (found.dtype, found.shape) == (dtype, (4, 3))


def test_ends_and_evaluation():
    given = torch.randn(9)
    assert torch.equal(fast_dropout(given, 0.0), given)
    assert torch.equal(fast_dropout(given, 1.0), torch.zeros(9))
    assert fast_dropout(torch.empty(0), 0.5).shape == (0,)
    layer = Dropout(0.5)
    assert isinstance(layer, nn.Dropout)
    assert layer.eval()(given) is given
    assert not torch.equal(layer.train()(given), given)


def test_anyones_model_drops_in_the_same_places():
    model = nn.Sequential(
        nn.Linear(4, 4), nn.Dropout(0.3), nn.Sequential(nn.Dropout(0.7)), nn.Dropout(0.1, inplace=True)
    )
    names = list(model.state_dict())
    use_fast_dropout_(model)
    kinds = [type(one) for one in model.modules() if isinstance(one, nn.Dropout)]
    assert kinds == [Dropout, Dropout, nn.Dropout], "one that writes into its input is left alone"
    assert [model[1].p, model[2][0].p] == [0.3, 0.7]
    assert list(model.state_dict()) == names
    assert torch.equal(model.eval()[1](torch.ones(9)), torch.ones(9))
