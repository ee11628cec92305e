"""A table of torchvision's classifiers, which needs no torchvision: sizes, operations, parameters.

`benchmarks/model_table.py` writes it, and a test compares it with torchvision. Operations are those
of one image of 224 x 224 pixels, which every network of a fixed size takes. A multiply-add counts
as two; only convolutions, matrix products and attention count (PyTorch's `FlopCounterMode`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

REFERENCE_SIZE: Final = 224


@dataclass(frozen=True)
class Model:
    """A network: its smallest (or only) image size, and its work at 224 pixels."""

    size: int
    flops: int
    params: int
    fixed: bool = False

    def takes(self, size: int) -> bool:
        """Say whether the network takes images of this height and width."""
        return size == self.size if self.fixed else size >= self.size

    @property
    def gflops(self) -> float:
        """Return 10^9 operations of one image of `REFERENCE_SIZE`."""
        return self.flops / 1e9


MODELS: Final[Mapping[str, Model]] = {
    "alexnet": Model(63, flops=1_428_376_960, params=61_100_840),
    "convnext_base": Model(32, flops=30_709_458_944, params=88_591_464),
    "convnext_large": Model(32, flops=68_722_867_200, params=197_767_336),
    "convnext_small": Model(32, flops=17_367_424_512, params=50_223_688),
    "convnext_tiny": Model(32, flops=8_911_062_528, params=28_589_128),
    "densenet121": Model(29, flops=5_668_323_328, params=7_978_856),
    "densenet161": Model(29, flops=15_455_814_144, params=28_681_000),
    "densenet169": Model(29, flops=6_719_686_656, params=14_149_480),
    "densenet201": Model(29, flops=8_582_731_776, params=20_013_928),
    "efficientnet_b0": Model(1, flops=771_629_504, params=5_288_548),
    "efficientnet_b1": Model(1, flops=1_139_303_360, params=7_794_184),
    "efficientnet_b2": Model(1, flops=1_317_926_880, params=9_109_994),
    "efficientnet_b3": Model(1, flops=1_925_416_480, params=12_233_232),
    "efficientnet_b4": Model(1, flops=3_007_420_864, params=19_341_616),
    "efficientnet_b5": Model(1, flops=4_712_986_368, params=30_389_784),
    "efficientnet_b6": Model(1, flops=6_720_333_696, params=43_040_704),
    "efficientnet_b7": Model(1, flops=10_339_730_304, params=66_347_960),
    "efficientnet_v2_l": Model(1, flops=24_462_377_088, params=118_515_272),
    "efficientnet_v2_m": Model(1, flops=10_724_414_400, params=54_139_356),
    "efficientnet_v2_s": Model(1, flops=5_699_791_744, params=21_458_488),
    "googlenet": Model(15, flops=2_996_752_384, params=13_004_888),
    "inception_v3": Model(75, flops=5_675_842_240, params=27_161_264),
    "maxvit_t": Model(224, fixed=True, flops=11_116_093_440, params=30_919_624),
    "mnasnet0_5": Model(1, flops=208_911_936, params=2_218_512),
    "mnasnet0_75": Model(1, flops=430_986_208, params=3_170_208),
    "mnasnet1_0": Model(1, flops=628_831_744, params=4_383_312),
    "mnasnet1_3": Model(1, flops=1_052_724_864, params=6_282_256),
    "mobilenet_v2": Model(1, flops=601_548_544, params=3_504_872),
    "mobilenet_v3_large": Model(1, flops=433_179_520, params=5_483_032),
    "mobilenet_v3_small": Model(1, flops=113_020_800, params=2_542_856),
    "regnet_x_16gf": Model(1, flops=31_881_510_912, params=54_278_536),
    "regnet_x_1_6gf": Model(1, flops=3_205_699_584, params=9_190_136),
    "regnet_x_32gf": Model(1, flops=63_471_859_584, params=107_811_560),
    "regnet_x_3_2gf": Model(1, flops=6_353_243_904, params=15_296_552),
    "regnet_x_400mf": Model(1, flops=827_625_216, params=5_495_976),
    "regnet_x_800mf": Model(1, flops=1_599_399_424, params=7_259_656),
    "regnet_x_8gf": Model(1, flops=15_990_264_832, params=39_572_648),
    "regnet_y_128gf": Model(1, flops=255_035_631_360, params=644_812_894),
    "regnet_y_16gf": Model(1, flops=31_823_020_544, params=83_590_140),
    "regnet_y_1_6gf": Model(1, flops=3_224_152_320, params=11_202_430),
    "regnet_y_32gf": Model(1, flops=64_559_105_664, params=145_046_770),
    "regnet_y_3_2gf": Model(1, flops=6_352_965_504, params=19_436_338),
    "regnet_y_400mf": Model(1, flops=803_685_696, params=4_344_144),
    "regnet_y_800mf": Model(1, flops=1_667_712_512, params=6_432_512),
    "regnet_y_8gf": Model(1, flops=16_946_141_184, params=39_381_472),
    "resnet101": Model(1, flops=15_602_810_880, params=44_549_160),
    "resnet152": Model(1, flops=23_027_253_248, params=60_192_808),
    "resnet18": Model(1, flops=3_628_146_688, params=11_689_512),
    "resnet34": Model(1, flops=7_327_522_816, params=21_797_672),
    "resnet50": Model(1, flops=8_178_368_512, params=25_557_032),
    "resnext101_32x8d": Model(1, flops=32_828_030_976, params=88_791_336),
    "resnext101_64x4d": Model(1, flops=30_920_540_160, params=83_455_272),
    "resnext50_32x4d": Model(1, flops=8_460_959_744, params=25_028_904),
    "shufflenet_v2_x0_5": Model(1, flops=80_952_896, params=1_366_792),
    "shufflenet_v2_x1_0": Model(1, flops=289_815_984, params=2_278_604),
    "shufflenet_v2_x1_5": Model(1, flops=591_518_784, params=3_503_624),
    "shufflenet_v2_x2_0": Model(1, flops=1_166_506_928, params=7_393_996),
    "squeezenet1_0": Model(21, flops=1_637_849_152, params=1_248_424),
    "squeezenet1_1": Model(17, flops=698_303_872, params=1_235_496),
    "swin_b": Model(4, flops=30_861_893_632, params=87_768_224),
    "swin_s": Model(4, flops=17_481_750_528, params=49_606_258),
    "swin_t": Model(4, flops=8_981_133_312, params=28_288_354),
    "swin_v2_b": Model(4, flops=34_095_357_952, params=87_930_848),
    "swin_v2_s": Model(4, flops=19_390_568_448, params=49_737_442),
    "swin_v2_t": Model(4, flops=9_876_928_512, params=28_351_570),
    "vgg11": Model(32, flops=15_218_180_096, params=132_863_336),
    "vgg11_bn": Model(32, flops=15_218_180_096, params=132_868_840),
    "vgg13": Model(32, flops=22_616_932_352, params=133_047_848),
    "vgg13_bn": Model(32, flops=22_616_932_352, params=133_053_736),
    "vgg16": Model(32, flops=30_940_528_640, params=138_357_544),
    "vgg16_bn": Model(32, flops=30_940_528_640, params=138_365_992),
    "vgg19": Model(32, flops=39_264_124_928, params=143_667_240),
    "vgg19_bn": Model(32, flops=39_264_124_928, params=143_678_248),
    "vit_b_16": Model(224, fixed=True, flops=35_127_656_448, params=86_567_656),
    "vit_b_32": Model(224, fixed=True, flops=8_818_372_608, params=88_224_232),
    "vit_h_14": Model(224, fixed=True, flops=334_590_218_240, params=632_045_800),
    "vit_l_16": Model(224, fixed=True, flops=123_109_425_152, params=304_326_632),
    "vit_l_32": Model(224, fixed=True, flops=30_755_078_144, params=306_535_400),
    "wide_resnet101_2": Model(1, flops=45_506_101_248, params=126_886_696),
    "wide_resnet50_2": Model(1, flops=22_796_042_240, params=68_883_240),
}
