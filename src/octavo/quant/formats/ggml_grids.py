"""GGML's blocks of codes that name points of a grid: 1.56 to 3.44 bits a number. They are met in more bits.

    format    a code is of      signs           scale of            layout
    IQ2_XXS   8 of 256 points   seven of eight  32, d (2s + 1) / 8  S8
    IQ2_XS    8 of 512          seven of eight  16, d (2s + 1) / 8  S8
    IQ2_S     8 of 1024         eight           16, d (2s + 1) / 8  S8
    IQ3_XXS   4 of 256          seven of eight  32, d (2s + 1) / 4  S8
    IQ3_S     4 of 512          eight           32, d (2s + 1)      S8
    IQ1_S     8 of 2048         -               32, d (2s + 1)      U4, whose minima carry the eighths
    IQ1_M     8 of 2048         -               16, d (2s + 1)      S8, in eighths

The points of IQ1 have coordinates -1, 0 and 1, to all of which an eighth is added or, where a bit is set,
taken away. Of seven signs the eighth makes the number of minus signs even. A grid is a set of points: which
ones was found by trying (llama.cpp, ggml-common.h, iq2xxs_grid to iq1s_grid; MIT), so they stand here, as
numbers to a base, the first coordinate the lowest digit. In each grid they ascend.
"""

from __future__ import annotations

import functools
import zlib
from base64 import b85decode
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from octavo.kernels.weight import BLOCK, Layout, Weight
from octavo.quant.formats.ggml import U8, Blocks, D, Release
from octavo.quant.packing import nibbles
from octavo.quant.registry import Format

I8 = npt.NDArray[np.int8]
F32 = npt.NDArray[np.float32]

_TWO = (8, 25, 43)
_THREE = (4, 12, 20, 28, 36, 44, 52, 62)
_THREE_S = (1, 3, 5, 7, 9, 11, 13, 15)
_ONE = (-1, 0, 1)


def _grid(width: int, coordinates: tuple[int, ...], points: str) -> Callable[[], I8]:
    """What gives the points [count, width] of a grid, and makes them when it is first asked.

    Args:
        points: a bit for each number of `width` digits to the base of so many coordinates: whether it is in
            the grid; deflated, in base 85.
    """

    @functools.cache
    def made() -> I8:
        member = np.unpackbits(np.frombuffer(zlib.decompress(b85decode(points)), np.uint8), bitorder="little")
        digits = np.flatnonzero(member)[:, None] // len(coordinates) ** np.arange(width) % len(coordinates)
        return np.asarray(np.array(coordinates, np.int8)[digits])

    return made


_IQ2_XXS = _grid(
    8,
    _TWO,
    (
        "c-nPRORB^$43oj#tB`je2YP^R=KfcCw)5@K5e=lV<VbEmf91ogR%p3E0BR^O#16P=^@J3)+t0mx___f>P^zDolEn6;is&dxI!#Zg"
        "_{KuzkVd4Mw`?l*l~*(z5~c8Qj-!-YZym34v`$TQ4<4*~)dpL;rq|+W4irx`d$&)6^vGb7UkLBrzcFbHqcf>sMFwRxr;MTG;*}m%"
        "Qlby-@@TSk)X7om@@#uKQIjUUWQ&$2&y}*gX5TV=Bc|Cuh1wL(2Kn3A3Yj<N%;gblzhT7_jxp@MF=lA5st5R^Hl2J=^JV`E{Z0D^"
        "#$6R7"
    ),
)
_IQ2_XS = _grid(
    8,
    _TWO,
    (
        "c-mc2TdsvL2pkgnkBRPwCicH3cK=&BJX-bM<{ZTW!^|+oxJIi-qkD|rsuaR~iB<*?x~C4>8J0pJW<V>X*vo#SY&(-c)w(<-fCU6Q"
        "Vt|)*=>oJ=N8h~B3mmYKBw*Y)Ca<s*uvOak7T*la5<g=kAh?T96(5+bR(Mt@J=L5^n!u1sF+~=p=RjVCGbM+vDH*59tF!>kC`)-u"
        "3GzO}jM8X_r-*1ytubG*&a^iqGs?p-do}D8x2NWXU?%O)=7t88q040RdJ=Ak)9T+$YBcFD31^6BC_W+mG1}iEA-T}Oj@u6-pQ1yB"
        "yIl9%`W3mW#F%j~<yh(N0zSL~oH^Zy%}}tQx4=M73#xoc?jNErTmD?iDs40;(&MG>YYMNuDE=SK;cc#9vM%q_=>7msuqjC"
    ),
)
_IQ2_S = _grid(
    8,
    _TWO,
    (
        "c-n1JU5W-F3~NE(E9iYHjPDBe{#V(wI=kPpE5rQ7#3X8F%Z9aF@G^(h-0EI3Em0|W3^QwctZ7zp0a8G#rYWS&oF&YfEj@sgh^u5F"
        "BBgC>LAkBEEtarKv-X}c)kMD5E9g)N*35uFS6j&;COQ!QC2=T0oAzp}=fs8f?3xctXeG?g^dQAA!2(KVP=j1x!<Qgx@l7F)Pu!TM"
        "d$m>{ZzEray(N$AzRb24)#*U9zYZZF^+2!@EVQ9?ARiEH!J<ErE8usn4?()-BQhW*1pE<<S|Z6aT82aQO}QP4+el6zUY~*z7~Sl6"
        "pK?p!Q_DMIhH4w7?joIO9P^#Dw9CRS7mu8OBC|vDii4FoWN_zK9m?6y$}qXC*pyH_2f!)+bXep&HXz~CYasM7Fd3(JhmM~KIbkHJ"
        "7yU4;E692~{FNElHOf~Fzm+TBn!W(JyjC6"
    ),
)
_IQ3_XXS = _grid(
    4,
    _THREE,
    (
        "c-l=-F%H5o3_M%0RAmZ7_lgPeigaLyA4Q!IuVCbv_?)J2Rn;aw-<^~BWtxCXwzFx0%xW)eST<YW5KL&L;j#hAAHoX-c)&}FY<X@1"
        "m|7IGsjrX>q7@bAuHrcP3L2_`6x)_>^v5;&o?@Fdagv_Uo9H*utGOGEJ93R6P|L2rgx{U}Y-UnrS3sKYtPIbF!WdDS7|dsT<9UQC"
        "qzhJe8+4kK5km%XvHjm=J(sMgqk-e3v^zjTJayVggoDWMJzTWE4a0T)3l-9P!ydlNePrBA?Xny*@kmBo4W|8$?wEo20v5Uy_5"
    ),
)
_IQ3_S = _grid(
    4,
    _THREE_S,
    (
        "c-k#d!AiqG5PdVu!e&pqA>uXNMyUCUt<-~hDT4SrX{pfmmf{D9Rs{Q#&TgE;z`Qr}-rMBob#A|%IbF{W(Id*&Lkwq!%0~0(%@Ao{"
        "OU0lD_x2OXCI^OquXIKLt}o^pYnG?L6&oz+9HeSVPSrN(A}t!YmF^Xmp*3Qy-5G8(e|b5Y-VC?q(AA>+32wuC)HmEXp@c1}PT|h8"
        "3}iuXSwt^ePGkv?U+Lf3a_=1ov?9@{igP&9v4ypFswx3&TJZ@M2_=SuX>*z&qp%+CoXl)ge8!drA@5Agyn!FG+()?*sDei}n1QT9"
        "5(J|p-wR7#Aht{0!Hx!aZfy;cl!bD4D3uqR(zW`GY5;6>@R{_|3X$jRqNR^eu)^e<Ll^vCYlKPU1;QQ+o$IB(hKom+bHx0SXmXXw"
        "yZnVo8~6jd#wQ>"
    ),
)
_IQ1 = _grid(
    8,
    _ONE,
    (
        "c-k#eK}(!R7=CxE;dM-9V?RN1diSfb(^(PgE$L;EU0C#DLh=VZ*|bQ>IZZw%yXlwN6ha`hG?#HO$v6$G@ldv(umMk2dT8mb2WdTo"
        "x*h^v8VtnDuD#8?@Vw9Syw7v(LR2?w<}y}3b9YJG^C&5*&qs>Nl?x;NhAB!%0hRecnsm$a2YwJ@;QqccSPG~@n#@N5uBY$^gNY22"
        "s7}?HYgoxmY#Y+!Ajh1yxWA4l1OzVO1-XRyWBes^wA;LAoBq<x!%nuPhFWp9`{&R@7DG%<XIwD^Is3Q$Jf@<B<<hd(0^?jzIHG8v"
        "Qn*?-$Ub(LsHW&@kYNcQ%|}dP%c;av8KJU^mWiJv*28-WD<$YEG%#}+D!ES;XeDuFD(VlG#i@A4$V;H%7rH52w&LB_pg1xSvl=L<"
        "CZ@9?{WdkSxbxSuMq|l64F4MqT|O(RS}O@H(bLXvHn!_OntvSw2GXTKiD_6XGLxujp0!)qyF+V=7Bv?g3oFy??D1-6?{(2le%HQr"
        "c>Le(m#@Cb_P%)g$;r#{<KcsUbe#9?p_<1{H>jE?+1SCIq;Fwj@yPMjA_U90?}vdY$)D1%>fQq-z{36HBT$I&mG*v%J#A~V%aSj@"
        "pZtCEAg}V1eou`2@uUxU_YQ=)6;l3U7EjmAKr#y2F0kdO91c}@u6ikZ68>90+)KINV7E3oVy0wcNC7Qg*Gnz$6Ckekcj5w;yQl$8"
        "BcV}uIeIA*;9XR~L2uzcrHYS+2)y-rqrtcg6e{stpn$cM#il(dTBx(R&0u-;P1DmAvG}u@dX;b%ns9v~6p49X^c}lqEMlIFjzJBb"
        "rp$X4T{{D_p5YV7e^~xM<^E7<_56qcAaL=FI+lT|4v2#Y&dpW2-Egd@Fdf5G@Dheeu*|v(bMFD;1sQ1"
    ),
)

_BITS = np.arange(8, dtype=np.uint8)
_SEVENS = np.arange(0, 28, 7, dtype=np.uint32)
_SEVEN_SIGNS = np.array([i | (i.bit_count() & 1) << 7 for i in range(128)], np.uint8)


def _signed(points: I8, signs: U8) -> I8:
    """[..., numbers] with the signs that bits [..., numbers / 8] say, 1 a minus, the lowest bit the first."""
    minus = (signs[..., None] >> _BITS & np.uint8(1)).reshape(points.shape).astype(bool)
    return np.where(minus, -points, points)


def _s8(blocks: Blocks, values: I8, scale: F32, release: Release) -> Weight:
    """Numbers of 256 a block and their scales, of 16 or 32."""
    n, count = blocks.shape
    q = np.ascontiguousarray(values).reshape(n, count * 8, BLOCK)
    return Weight(Layout.S8, (n, count * 256), q, scale.reshape(n, -1), release=release)


def _odd(blocks: Blocks, steps: npt.NDArray[np.unsignedinteger], over: int) -> F32:
    """d (2s + 1) / over of steps [N, B, groups]: exact, as over is a power of two."""
    factors = (2 * steps.astype(np.float32) + 1) / np.float32(over)
    return blocks["d"].astype(np.float32)[:, :, None] * factors


def _low_high(q: U8) -> U8:
    """[N, B, bytes] -> [N, B, 2 bytes]: each one's low nibble, then its high one."""
    return np.stack([q & np.uint8(15), q >> np.uint8(4)], axis=-1).reshape(*q.shape[:2], -1)


def _sevens(words: npt.NDArray[np.uint32]) -> U8:
    """Four times seven signs of each word [N, B, words] -> eight each, [N, B, 4 words]; s is atop of them."""
    four = (words[..., None] >> _SEVENS & np.uint32(127)).astype(np.uint8)
    return _SEVEN_SIGNS[four].reshape(*words.shape[:2], -1)


def _iq2_xxs(blocks: Blocks, release: Release) -> Weight:
    """q: for each 32 numbers four codes, then a word of signs and scale."""
    codes, words = blocks["q"]["codes"].reshape(*blocks.shape, -1), blocks["q"]["signs"]
    values = _signed(_IQ2_XXS()[codes].reshape(*blocks.shape, 256), _sevens(words))
    return _s8(blocks, values, _odd(blocks, words >> np.uint32(28), 8), release)


def _iq2_xs(blocks: Blocks, release: Release) -> Weight:
    """q: nine bits of code, seven of signs."""
    q = blocks["q"]
    signs = _SEVEN_SIGNS[(q >> np.uint16(9)).astype(np.uint8)]
    values = _signed(_IQ2_XS()[q & np.uint16(511)].reshape(*blocks.shape, 256), signs)
    return _s8(blocks, values, _odd(blocks, _low_high(blocks["scales"]), 8), release)


def _iq2_s(blocks: Blocks, release: Release) -> Weight:
    """Two more bits of four codes in each byte of qh."""
    pairs = blocks["qh"][..., None] >> _BITS[:8:2] & np.uint8(3)
    codes = blocks["q"] | pairs.reshape(*blocks.shape, 32).astype(np.uint16) << np.uint16(8)
    values = _signed(_IQ2_S()[codes].reshape(*blocks.shape, 256), blocks["signs"])
    return _s8(blocks, values, _odd(blocks, _low_high(blocks["scales"]), 8), release)


def _iq3_xxs(blocks: Blocks, release: Release) -> Weight:
    words = blocks["signs"]
    values = _signed(_IQ3_XXS()[blocks["q"]].reshape(*blocks.shape, 256), _sevens(words))
    return _s8(blocks, values, _odd(blocks, words >> np.uint32(28), 4), release)


def _iq3_s(blocks: Blocks, release: Release) -> Weight:
    """One more bit of eight codes in each byte of qh."""
    ninth = (blocks["qh"][..., None] >> _BITS & np.uint8(1)).reshape(*blocks.shape, 64)
    codes = blocks["q"] | ninth.astype(np.uint16) << np.uint16(8)
    values = _signed(_IQ3_S()[codes].reshape(*blocks.shape, 256), blocks["signs"])
    return _s8(blocks, values, _odd(blocks, _low_high(blocks["scales"]), 1), release)


def _iq1_s(blocks: Blocks, release: Release) -> Weight:
    """qh: of 32 numbers the high bits of four codes, three of s, and on top whether the eighth is taken away.

    w = scale (q - 1 + 1/8) with q of 0 to 2: the minimum is scale times what follows q.
    """
    n, count = blocks.shape
    qh = blocks["qh"]
    high = (qh[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & np.uint16(7)).reshape(n, count, 32)
    q = (_IQ1()[blocks["q"] | high << np.uint16(8)] + np.int8(1)).view(np.uint8)
    scale = _odd(blocks, qh >> np.uint16(12) & np.uint16(7), 1)
    minimum = scale * np.where(qh >> np.uint16(15), np.float32(-9 / 8), np.float32(-7 / 8))
    shape = n, count * 8
    return Weight(
        Layout.U4,
        (n, count * 256),
        nibbles(q.reshape(*shape, BLOCK)),
        scale.reshape(shape),
        minimum.reshape(shape),
        release,
    )


def _iq1_m(blocks: Blocks, release: Release) -> Weight:
    """qh: of each code a nibble, three high bits and whether the eighth is taken away.

    Each of the four words of scales has four times three bits of s and, in its highest nibble, a part of d.
    """
    n, count = blocks.shape
    words = blocks["scales"]
    quarters = words >> np.uint16(12) << np.arange(0, 16, 4, dtype=np.uint16)
    d = np.bitwise_or.reduce(quarters, axis=-1).view(np.float16).astype(np.float32)
    steps = (words[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & np.uint16(7)).reshape(n, count, 16)
    high = _low_high(blocks["qh"])
    points = _IQ1()[blocks["q"] | (high & np.uint8(7)).astype(np.uint16) << np.uint16(8)]
    values = np.int8(8) * points + np.where(high & np.uint8(8), np.int8(-1), np.int8(1))[..., None]
    scale = d[:, :, None] * ((2 * steps.astype(np.float32) + 1) / np.float32(8))
    return _s8(blocks, values, scale, release)


_SIGNS = ("signs", "u1", (32,))
FORMATS = (
    Format("IQ2_XXS", 256, np.dtype([D, ("q", [("codes", "u1", (4,)), ("signs", "<u4")], (8,))]), _iq2_xxs),
    Format("IQ2_XS", 256, np.dtype([D, ("q", "<u2", (32,)), ("scales", "u1", (8,))]), _iq2_xs),
    Format(
        "IQ2_S",
        256,
        np.dtype([D, ("q", "u1", (32,)), _SIGNS, ("qh", "u1", (8,)), ("scales", "u1", (8,))]),
        _iq2_s,
    ),
    Format("IQ3_XXS", 256, np.dtype([D, ("q", "u1", (64,)), ("signs", "<u4", (8,))]), _iq3_xxs),
    Format(
        "IQ3_S",
        256,
        np.dtype([D, ("q", "u1", (64,)), ("qh", "u1", (8,)), _SIGNS, ("scales", "u1", (4,))]),
        _iq3_s,
    ),
    Format("IQ1_S", 256, np.dtype([D, ("q", "u1", (32,)), ("qh", "<u2", (8,))]), _iq1_s),
    Format(
        "IQ1_M", 256, np.dtype([("q", "u1", (32,)), ("qh", "u1", (16,)), ("scales", "<u2", (4,))]), _iq1_m
    ),
)
