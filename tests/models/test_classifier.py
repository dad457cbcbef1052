from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from opendg.errors import OpenDGError
from opendg.models.backbones import build_backbone
from opendg.models.classifier import Classifier
from opendg.models.parted import PartedHead, Said
from opendg.models.stages import touched
from small import small_backbone

CPU = torch.device("cpu")


def images(n: int = 3, side: int = 8) -> Tensor:
    return torch.rand(n, 3, side, side, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("head", "outputs"), [("closed", 5), ("dual", 15), ("shared", 10)])
def test_shapes_of_the_heads(head: str, outputs: int) -> None:
    found = Classifier(small_backbone(), 5, head)(images())
    assert found.features.shape == (3, 6)
    assert found.logits.shape == (3, 5)
    assert (None if found.ova is None else found.ova.shape) == (None if head == "closed" else (3, 2, 5))
    layers = Classifier(small_backbone(), 5, head).head.parameters()
    assert sum(parameter.numel() for parameter in layers) == outputs * (6 + 1)


@pytest.mark.parametrize("head", ["closed", "dual", "shared"])
def test_heads_start_as_the_papers_do(head: str) -> None:
    """Xavier uniform with gain 0.1: even between -a and a, a = 0.1 sqrt(6 / (inputs + outputs)); no bias."""
    torch.manual_seed(0)
    layers = [m for m in Classifier(build_backbone("convnet"), 40, head).head.modules() if isinstance(m, nn.Linear)]
    for layer in layers:
        weight, reach = layer.weight.detach(), 0.1 * (6 / sum(layer.weight.shape)) ** 0.5
        assert 0.99 * reach < float(weight.abs().max()) <= reach
        assert float(weight.std()) == pytest.approx(reach / 3**0.5, rel=0.02)
        assert not layer.bias.any()


def test_the_shared_head_has_one_layer_for_both() -> None:
    classifier = Classifier(small_backbone(), 4, "shared")
    found = classifier(images())
    assert found.ova is not None
    assert torch.equal(found.logits, found.ova[:, 1])
    assert [name for name, _ in classifier.head.named_parameters()] == ["ova.weight", "ova.bias"]


def test_channels_of_the_one_vs_all_head() -> None:
    """Channel 0 has the first K outputs of the layer, channel 1 the last K."""
    classifier = Classifier(small_backbone(), 4, "dual")
    with torch.no_grad():
        classifier.head.ova.bias.copy_(torch.arange(8.0))
        classifier.head.ova.weight.zero_()
    ova = classifier(images(1)).ova
    assert ova is not None
    assert ova[0].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_heads_compute_in_fp32_beside_a_bf16_backbone() -> None:
    classifier = Classifier(build_backbone("convnet"), 5).eval()
    with torch.no_grad():
        exact = classifier(images(side=32))
        classifier.place(CPU, "bf16")
        found = classifier(images(side=32))
    assert classifier.low is torch.bfloat16
    assert {value.dtype for value in found if value is not None} == {torch.float32}
    assert torch.equal(found.features, found.features.bfloat16().float())  # the backbone's came in bf16
    assert torch.allclose(found.features, exact.features, atol=0.05, rtol=0.05)
    expected = found.features @ classifier.head.linear.weight.T + classifier.head.linear.bias
    torch.testing.assert_close(found.logits, expected)  # not rounded to bf16
    assert not torch.equal(found.logits, found.logits.bfloat16().float())


def test_an_outer_autocast_does_not_reach_the_heads() -> None:
    classifier = Classifier(build_backbone("convnet"), 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = classifier.heads(torch.randn(2, 256))
    assert found.logits.dtype == torch.float32


@pytest.mark.parametrize(("precision", "low"), [("fp32", None), ("bf16", torch.bfloat16), ("auto", None)])
def test_precision_on_the_cpu(precision: str, low: torch.dtype | None) -> None:
    classifier = Classifier(small_backbone(), 5)
    classifier.place(CPU, precision)
    assert classifier.low is low


def test_maps_lie_channels_last() -> None:
    classifier = Classifier(small_backbone(), 4)
    classifier.place(CPU, "fp32")
    assert classifier.backbone.net[1][0].weight.is_contiguous(memory_format=torch.channels_last)


def test_what_moves_are_parameters_and_running_means() -> None:
    classifier = Classifier(small_backbone(batchnorm=True), 4)
    statistics = {f"backbone.net.0.1.running_{name}" for name in ("mean", "var")}
    assert classifier.moving().keys() == classifier.weights().keys() | statistics


def test_each_part_of_a_head_sees_its_own_share() -> None:
    class Stacked(PartedHead):
        def join(self, said: list[Said]) -> Said:
            return torch.stack([logits for logits, _ in said]), None

    head, features = Stacked("closed", 3, 2, 4), torch.randn(5, 6)
    expected = [part(features[:, 2 * number : 2 * number + 2])[0] for number, part in enumerate(head.parts)]
    assert torch.equal(head(features)[0], torch.stack(expected))
    weights = {f"head.{name}": weight for name, weight in head.named_parameters()}
    found = head.each(weights, features)
    assert torch.equal(torch.stack([outputs.logits for outputs in found]), torch.stack(expected))
    assert torch.equal(torch.cat([outputs.features for outputs in found], dim=1), features)


def test_double_weights_compute_in_double() -> None:
    classifier = Classifier(small_backbone(), 5).double()
    assert classifier.precise == torch.float64
    assert classifier(images().double()).logits.dtype == torch.float64


def test_frozen_batchnorm_stays_frozen_in_training() -> None:
    for freeze in (False, True):
        classifier = Classifier(small_backbone(batchnorm=True), 5, freeze_batchnorm=freeze).train()
        norm = classifier.backbone.net[0][1]
        before = norm.running_mean.clone()
        classifier(images())
        assert torch.equal(norm.running_mean, before) == freeze
        assert classifier.training
        assert classifier.head.training
        assert not classifier.eval().backbone.training


def test_at_puts_other_weights_in_place_for_one_pass() -> None:
    classifier = Classifier(small_backbone(), 5)
    mine = classifier(images()).logits
    other = {name: weight.detach() * 2 for name, weight in classifier.weights().items()}
    assert not torch.allclose(classifier.at(other, images()).logits, mine)
    assert torch.equal(classifier(images()).logits, mine)
    assert torch.equal(classifier.at(classifier.weights(), images()).logits, mine)


def test_at_moves_the_running_statistics() -> None:
    classifier = Classifier(small_backbone(batchnorm=True), 5).train()
    classifier.at(classifier.weights(), images())
    assert int(classifier.backbone.net[0][1].num_batches_tracked) == 1


def test_weights_are_the_parameters_themselves() -> None:
    classifier = Classifier(small_backbone(), 5)
    assert list(map(id, classifier.weights().values())) == list(map(id, classifier.parameters()))


def hooks(module: nn.Module) -> int:
    return sum(len(part._forward_hooks) for part in module.modules())


@pytest.fixture
def convnet() -> Iterator[Classifier]:
    classifier = Classifier(build_backbone("convnet"), 5).eval()
    yield classifier
    assert hooks(classifier) == 0


def test_touches_see_the_maps_of_their_stages(convnet: Classifier) -> None:
    seen: dict[str, tuple[int, ...]] = {}

    def look(stage: str, x: Tensor) -> Tensor:
        seen[stage] = tuple(x.shape)
        return x

    plain = convnet(images(side=32)).logits
    touches = {stage: lambda x, stage=stage: look(stage, x) for stage in ("1", "2", "3", "4")}
    assert torch.equal(convnet(images(side=32), touches).logits, plain)
    assert seen == {str(n): (3, 64, 32 >> n, 32 >> n) for n in (1, 2, 3, 4)}


def test_touches_change_what_follows(convnet: Classifier) -> None:
    changed = convnet(images(side=32), {"2": torch.zeros_like}).features
    assert torch.equal(changed[0], changed[1])  # nothing of the images is left behind stage 2
    assert torch.equal(convnet(images(side=32), {"4": lambda x: x * 2}).features, 2 * convnet(images(side=32)).features)


def test_touches_work_with_other_weights(convnet: Classifier) -> None:
    found = convnet.at(convnet.weights(), images(side=32), {"4": torch.zeros_like})
    assert not found.features.any()


def test_touches_are_differentiable(convnet: Classifier) -> None:
    scale = torch.ones((), requires_grad=True)
    convnet(images(side=32), {"1": lambda x: x * scale}).logits.sum().backward()
    assert scale.grad is not None
    assert scale.grad != 0


def test_hooks_go_when_a_touch_fails(convnet: Classifier) -> None:
    def fail(x: Tensor) -> Tensor:
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        convnet(images(side=32), {"1": torch.relu, "2": fail})
    assert hooks(convnet) == 0


def test_a_stage_that_is_not_there(convnet: Classifier) -> None:
    with pytest.raises(OpenDGError, match="'convnet' has no stage 'stem' .it has: 1, 2, 3, 4"):
        convnet(images(side=32), {"1": torch.relu, "stem": torch.relu})
    assert hooks(convnet) == 0


def test_the_stem_of_a_resnet_comes_before_its_stages() -> None:
    backbone, order = build_backbone("resnet18").eval(), []

    def note(stage: str, x: Tensor) -> Tensor:
        order.append((stage, x.shape[2]))
        return x

    with torch.no_grad(), touched(backbone, {s: lambda x, s=s: note(s, x) for s in ("4", "stem", "2", "1", "3")}):
        backbone(torch.zeros(1, 3, 64, 64))
    assert order == [("stem", 16), ("1", 16), ("2", 8), ("3", 4), ("4", 2)]
