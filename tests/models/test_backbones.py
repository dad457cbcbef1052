from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from opendg.errors import OpenDGError
from opendg.models.backbones import Input, build_backbone, fingerprint
from opendg.models.stages import shapes


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_convnet_is_the_papers() -> None:
    backbone = build_backbone("convnet")
    assert backbone(torch.zeros(2, 3, 32, 32)).shape == (2, 256)
    assert backbone.width == 256
    assert parameters(backbone) == (3 * 9 + 1) * 64 + 3 * (64 * 9 + 1) * 64
    assert [type(module).__name__ for module in backbone.net[0]] == ["Conv2d", "ReLU", "MaxPool2d"]
    assert backbone.input == Input((32, 32), (0.5,) * 3, (0.5,) * 3)


def test_the_convnet_starts_as_the_papers_does() -> None:
    """Kaiming normal, fan_out: a standard deviation of sqrt(2 / (64 x 9)) in every block, the first too."""
    torch.manual_seed(0)
    for module in build_backbone("convnet").modules():
        if isinstance(module, nn.Conv2d):
            assert float(module.weight.detach().std()) == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.05)


def test_convnet_stages_halve_the_map() -> None:
    backbone = build_backbone("convnet")
    assert list(backbone.stages) == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("name", "width", "stages"),
    [
        ("resnet18.tv_in1k", 512, ["stem", "1", "2", "3", "4"]),
        ("resnet50.tv_in1k", 2048, ["stem", "1", "2", "3", "4"]),
        ("legacy_seresnet18", 512, ["stem", "1", "2", "3", "4"]),  # a layer4 like a ResNet's, and no maxpool
        ("mobilenetv3_small_050", 1024, ["stem", "1", "2", "3", "4"]),
        ("convnext_atto", 320, ["1", "2", "3", "4"]),
        ("dla46_c", 256, ["1", "2", "3", "4", "5", "6"]),
        ("vit_tiny_patch16_224", 192, [str(number) for number in range(1, 13)]),
    ],
)
def test_timm_names(name: str, width: int, stages: list[str]) -> None:
    backbone = build_backbone(name).eval()
    assert backbone.width == width
    assert list(backbone.stages) == stages
    assert all(backbone.get_submodule(place) is not None for place in backbone.stages.values())
    with torch.no_grad():
        assert backbone(torch.zeros(1, 3, *backbone.input.size)).shape == (1, width)


@pytest.mark.parametrize(
    "name",
    [
        "resnet18", "legacy_seresnet18", "regnetx_002", "resnetv2_50", "repvgg_a0", "densenet121",
        "mobilenetv3_small_050", "efficientnet_lite0", "test_byobnet", "test_nfnet", "convnext_atto",
    ],
)  # fmt: skip
def test_a_stage_is_as_deep_in_every_network(name: str) -> None:
    """Methods name stages by a ResNet's numbers: maps of 1/4, 1/8, 1/16 and 1/32 of the image's side."""
    backbone = build_backbone(name)
    side = backbone.input.size[0]
    found = {stage: round(side / height) for stage, (_, height, _) in shapes(backbone).items() if stage != "stem"}
    assert found == {"1": 4, "2": 8, "3": 16, "4": 32}


def test_the_input_is_that_of_the_weights() -> None:
    assert build_backbone("resnet18.tv_in1k").input == Input((224, 224), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert build_backbone("vit_tiny_patch16_224").input.mean == (0.5, 0.5, 0.5)


def test_an_input_survives_json() -> None:
    shown = build_backbone("resnet18.tv_in1k").input
    assert Input.from_json(shown.to_json()) == shown
    oblong = Input((96, 160), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert Input.from_json(json.loads(json.dumps(oblong.to_json()))) == oblong


def test_a_fingerprint_is_of_names_shapes_and_numbers_in_no_order() -> None:
    one, other = nn.Linear(2, 3, bias=False), nn.Linear(3, 2, bias=False)
    other.weight.data = one.weight.data.reshape(2, 3)
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(nn.ModuleDict({"a": one})) != fingerprint(nn.ModuleDict({"b": one}))
    forth, back = nn.Module(), nn.Module()
    for net, names in ((forth, "ab"), (back, "ba")):
        for name in names:
            net.add_module(name, one if name == "a" else other)
    assert fingerprint(forth) == fingerprint(back)


@pytest.mark.parametrize("size", [(0, 8), (8, -1), (8193, 8), (8, 8193)])
def test_an_input_of_a_stranger_has_a_size_that_can_be(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="an image of"):
        Input.from_json({"size": size, "mean": [0, 0, 0], "std": [1, 1, 1]})


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("resnet81", "no backbone 'resnet81': did you mean .*'resnet18'"),
        ("convnett", "did you mean .*'convnet'"),
        ("resnet18.tv_in2k", "no backbone 'resnet18.tv_in2k': did you mean .*'resnet18.tv_in1k'"),
        ("zzzz", "any timm model or 'convnet' will do"),
        ("", "any timm model or 'convnet' will do"),
        ("hf-hub:stranger/resnet18", "no backbone"),
        ("local-dir:somewhere", "no backbone"),
        ("resnet18.a:b", "no backbone"),
        ("../resnet18", "no backbone"),
    ],
)
@pytest.mark.parametrize("weights", ["none", "imagenet"])
def test_names_that_are_none_are_refused(name: str, sentence: str, weights: str) -> None:
    with pytest.raises(OpenDGError, match=sentence):
        build_backbone(name, weights)


def test_there_are_no_imagenet_weights_for_every_name() -> None:
    for name in ("convnet", "resnet50.caffe"):
        with pytest.raises(OpenDGError, match=f"{name}.* has no "):
            build_backbone(name, "imagenet")


def from_the_hub(name: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, whose Hub and cache are others, builds a backbone with weights of the Hub."""
    program = (
        "from opendg.models.backbones import build_backbone\n"
        "from opendg.errors import OpenDGError\n"
        f"try:\n    print(build_backbone({name!r}, 'imagenet').start)\nexcept OpenDGError as error:\n    print(error)"
    )
    env = {"HF_HOME": str(home), "PATH": os.environ["PATH"]} | environment
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)


AWAY = {"HF_ENDPOINT": "http://127.0.0.1:9"}  # a port where nobody answers


@pytest.mark.parametrize("environment", [{"HF_HUB_OFFLINE": "1"}, AWAY], ids=["offline", "away"])
def test_imagenet_weights_without_a_hub_give_a_sentence(tmp_path: Path, environment: dict[str, str]) -> None:
    done = from_the_hub("resnet18.tv_in1k", tmp_path, **environment)
    assert "ImageNet weights of 'resnet18.tv_in1k' could not be fetched" in done.stdout
    assert "--weights FILE" in done.stdout
    assert "Retry" not in done.stderr


def test_imagenet_weights_of_the_cache_need_no_hub(tmp_path: Path) -> None:
    there = tmp_path / "hub" / "models--timm--test_resnet.r160_in1k"
    (there / "refs").mkdir(parents=True)
    (there / "refs" / "main").write_text("0" * 40)
    (there / "snapshots" / ("0" * 40)).mkdir(parents=True)
    net = timm.create_model("test_resnet")
    save_file(net.state_dict(), there / "snapshots" / ("0" * 40) / "model.safetensors")
    done = from_the_hub("test_resnet.r160_in1k", tmp_path, **AWAY)
    net.reset_classifier(0)
    assert done.stdout.split() == [fingerprint(net)], done.stderr
    assert "Retry" not in done.stderr


def test_resnet18_of_a_file(shared: Path) -> None:
    file = shared / "weights/resnet18.safetensors"
    stored, backbone = load_file(file), build_backbone("resnet18.tv_in1k", str(file))
    loaded = backbone.net.state_dict()
    whole = timm.create_model("resnet18").state_dict()
    assert {name for name in whole if name not in stored and "num_batches_tracked" not in name} == {
        "fc.weight",
        "fc.bias",
    }
    assert set(stored) <= set(loaded)
    assert all(torch.equal(loaded[name], tensor.float()) for name, tensor in stored.items())
    assert backbone.name == "resnet18.tv_in1k"


def strides(net: nn.Module) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(stride of the first 1x1, stride of the 3x3) of the first block of stages 2, 3 and 4."""
    blocks = [getattr(net, f"layer{number}")[0] for number in (2, 3, 4)]
    return {(block.conv1.stride, block.conv2.stride) for block in blocks}


def test_resnet50_of_the_file_gets_its_stride_placement(shared: Path) -> None:
    file = shared / "weights/resnet50.safetensors"
    found = build_backbone("resnet50.tv_in1k", str(file)).eval()
    assert found.name == "resnet50.caffe"
    assert strides(found.net) == {((2, 2), (1, 1))}
    usual = build_backbone("resnet50.tv_in1k").eval()
    assert strides(usual.net) == {((1, 1), (2, 2))}
    usual.net.load_state_dict(found.net.state_dict())
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        moved, left = found(images), usual(images)
    assert moved.shape == left.shape == (2, 2048)
    assert (moved - left).norm() > 0.1 * left.norm()  # the same weights see something else


def test_the_stride_placement_can_be_asked_for_by_name() -> None:
    backbone = build_backbone("resnet50.caffe")
    assert strides(backbone.net) == {((2, 2), (1, 1))}
    assert backbone.net.layer1[0].conv1.stride == (1, 1)
    assert backbone.input == build_backbone("resnet18.tv_in1k").input


def test_weights_of_the_wrong_shape_are_refused(tmp_path: Path) -> None:
    tensors = build_backbone("convnet").net.state_dict()
    save_file(tensors | {"1.0.weight": torch.zeros(64, 32, 3, 3)}, tmp_path / "narrow.safetensors")
    with pytest.raises(OpenDGError, match=r"do not fit 'convnet': 1.0.weight is \(64, 32, 3, 3\) and \(64, 64, 3, 3\)"):
        build_backbone("convnet", str(tmp_path / "narrow.safetensors"))


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    save_file(build_backbone("convnet").net.state_dict(), tmp_path / "convnet.safetensors")
    with pytest.raises(OpenDGError, match="do not fit 'resnet18': .* tensors are missing, conv1.weight first"):
        build_backbone("resnet18", str(tmp_path / "convnet.safetensors"))


@pytest.mark.parametrize("content", [b"", b"not tensors", b"\x80\x04cos\nsystem\n"])
def test_files_that_hold_no_tensors_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "odd.safetensors").write_bytes(content)
    with pytest.raises(OpenDGError, match="is not a readable safetensors file"):
        build_backbone("convnet", str(tmp_path / "odd.safetensors"))


def test_a_weight_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OpenDGError, match="There is no weight file .*give 'imagenet', 'none' or a .safetensors file"):
        build_backbone("convnet", str(tmp_path / "none.safetensors"))


def test_weights_of_a_file_arrive_in_fp32(tmp_path: Path) -> None:
    half = {name: tensor.half() for name, tensor in build_backbone("convnet").net.state_dict().items()}
    save_file(half | {"fc.weight": torch.zeros(3, 3)}, tmp_path / "half.safetensors")
    net = build_backbone("convnet", str(tmp_path / "half.safetensors")).net
    assert {tensor.dtype for tensor in net.state_dict().values()} == {torch.float32}
    assert all(torch.equal(tensor, half[name].float()) for name, tensor in net.state_dict().items())


def test_a_backbone_says_what_it_starts_from(tmp_path: Path) -> None:
    plain = build_backbone("convnet")
    assert plain.start == "none"
    tensors = dict(plain.net.state_dict())
    save_file(tensors, tmp_path / "a.safetensors")
    save_file({**tensors, "head.weight": torch.ones(3)}, tmp_path / "same.safetensors", {"made": "elsewhere"})
    tensors["0.0.bias"] = tensors["0.0.bias"] + 1e-3
    save_file(tensors, tmp_path / "b.safetensors")
    files = {name: tmp_path / f"{name}.safetensors" for name in ("a", "same", "b")}
    start = {name: build_backbone("convnet", str(path)).start for name, path in files.items()}
    assert start["a"] == start["same"] != start["b"]
    assert len(start["a"]) == 12
