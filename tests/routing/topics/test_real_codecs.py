"""Batches as producers compress them, and such as are made to burst: for all who look into records.

`_BATCHES` are 20 records (`k<n>`, `value <n> ` twenty times, header `h` with the number) as librdkafka 2 and
kafka-python 3 (with lz4 4.4, python-snappy 0.7, zstandard 0.25) sent them: snappy raw and in xerial's framing, lz4 with
and without its content's size, zstd with and without it.
"""

from __future__ import annotations

import base64

import cramjam
import pytest

from core_log.batch_header import encode_batch, parse_header
from core_log.compaction.records import payload, read_keys
from core_log.compression import DECOMPRESSED_BYTES_MAX, Compression
from core_log.errors import CorruptBatch
from core_log.record_batch import BatchBuilder, decode_columns, decode_header_block, validate
from core_log.record_fields import decode_fields
from routing.topics.stream_records import StreamReader

_BATCHES = {
    ("librdkafka", "gzip"): (
        b"00000000000004I000000vO^;hyVcq000vJ00E)`wJ25q00E)`wJ28q|NsC0|NsC0|NsC0{{R306d#KS00000000Bk)j>)GF"
        b"%X5}5Q{-%5D^g(843~CNxIWXAIF6tlv_Q5=kgqL0*_(6K;;a{s%rUvt9SO!Ig;?}zu!K;-Z}87*ZU72&YJ5<qUA;&^&&SSmq"
        b"?Q3CLZ-7HzD^xvRLlIqh91L$h{<4EqCQnFLGDpUXf(W%{=NwZbt5rWV76jN4?11kb6y1EVuBe7r6zwHzd_^E021STakN9vRm"
        b"%Xqh93hKNrs39VCW7+X>r|DIPUY3_#o~B6dVyml>Xhh(J6jB6Wmq&J<5WBp@CYv2=tj(G*WZEI>RdV(kdqrzxI>Sb;bxB6oz"
        b"X))Y@eWFS}(TSwTIP4P6u2E?->N=MkjP4P5D0pdjwwIgizrg$2n0`aPdy(4T5r+6A-{|5ue%3p{M000"
    ),
    ("librdkafka", "lz4"): (
        b"000000000000068000000`e{&2>=5C000vJ00E)`wJI+F00E)`wJI<F|NsC0|NsC0|NsC0{{R306a*qo7+^qx#sL5T{{z|r0"
        b"0004YcRk9c42IFWgsvh2mpmp0s?3PFs}ea0t9O@uK*J<uK*7S0Dl0l01z>+07L`?Ycj6@6Ed#=4+sE%0IvWLGOqwc1_Wy}uK"
        b"*J>uK*7S0Dl0l01z{;07M7`Yc#I_6Ev>?4+sE%0IvWLG_L?e3IuC4uK*J@uK*7S0Dl0l01!2=07MJ~Yc{U{6E?2^4+sE%0Iv"
        b"WLHm?9g4g_mAuK*J_uK*7S0Dl0l01!8?07MW3YdEg}6F9E`4+sE%0IvWLIIjRi5(H~GuK*J{uK*7S0Dl0l0JAxU0{{RN25T`"
        b"e=+_1mG1vwV2>_B{0s?3RF)+mdRTc(oF)_se1?C112>_7+#Q+d7#Q;?p25T`g#Q+5S1`i1Uk^#j45HiI8RT>6sF*C&g1QG`i"
        b"2>_A-#Q+d9#Q;?t25T`i#Q+2-2M-AVk^#j45H!UARUQUwF*U^i1U?532>_A-#Q+dB#Q;?x25T`k#Q+3U2M-AVk^#j45H`gCR"
        b"U!s!F*n5k1ZoEl2>_A-#Q+dD#Q;?#25T`m#Q+3=2M-AVk^#j45IDsERVD^&F*(Hm1eOO62>_B{0s?3RF*yJL000"
    ),
    ("librdkafka", "snappy"): (
        b"00000000000006*000000-KL?@Bjh;000vJ00E)`wJBHt00E)`wJBKt|NsC0|NsC0|NsC0{{R306o?%}+5!Lo00e6=zyfw*Y"
        b";|QIFd+U20R9L7UI+jX0s?3PFafU&0t9O@5w8F-4X^$P0R9L7MhE}_uK+OtuM7kPYcdh905T1){s;j62mnS100FN6G6Am)1_"
        b"Wy}5w8F<4X^$P0R9L7MhE}_uK+UvuM7wTYcvtB05lD+{s;j62mnS100FN6Gy$&+3IuC45w8F>4X^$P0R9L7MhE}_uK+axuM7"
        b"+XYc>(D05%P;{s;j62mnS100FN6HUX~;4g_mA5w8F@4X^$P0R9L7MhE}_uK+gzuM7|bYd8_F05}b={s;j62mnS100FN6I03H"
        b"=5(H~G5w8F_4X^$P0R9L7MhE}_uP8Z&0{{RN25T`e=*`yvG11um2>|{H0Fns+6aoTh1TioH#Sj(-YcVku#ntBi2>|{H0FDU&"
        b"1;qd{0mTp)25T`g6~)o~{s{p72>_A_00qSWG6BU98U|}IGZn@068;GQ{s{n*2>=Df05bu_5F7?;F*Fs$@hJWY0R9O8k_i9>#"
        b"Q-z`#Sk6_YcVwy#qmD=2>|{H0Fns+1;qe00mTp?25T`k6~*yX{s{p72>_A_00qSWHUY&DA_i+QHx<S4YW@iT{s{n*2>=Df05"
        b"<`}5F`d`F*p^)@qqpb0R9O8k_i9>#Q-<~#SkV2YcV+$#qpN@2>|{H0Fns+6aoTh1Ti@"
    ),
    ("librdkafka", "zstd"): (
        b"00000000000003m000000tcV=UH}9D000vJ00E)`wJTu&00E)`wJTx&|NsC0|NsC0|NsC0{{R306ezVX{Qy|42LO^vA|;?T>"
        b"7VsxRaH;HIp;h=Csm!k_uhN&o#w5j-rc)<ckd>vluicEx@5lRFMxB--$-lCUkGE&UuCW3??Wl&uOp@8Zv!FZFT=LK3&eyu)+"
        b"O`c_^UunnD^c_;hei7T5Hz>W9({JYh4RUsVgC+bX|ndRc&7rF`JW1rg9Vkf`Nd7G&om8%qCl?k!8_cr!b5G;FW0&65zxHG+m"
        b"4T|KATG*vS|&(jA6kxWpj{7BEyw77iKGOopVS!B7k>IRq>iq)ZVvwoP6usvfb6^U-8ik7vB`c%nWYMRxUY#v6|(>f=#lR}V*"
        b"wk;#9Rsdg0"
    ),
    ("kafka-python", "gzip"): (
        b"00000000000004I000000&X}7IRF6w000vJ00E)`wI{#;00E)`wI{$nWOTbmZc4TQ00000000006d#KS0KB~dYXbk()j>)GF"
        b"%X5}5Q{-%5D^g(843~CNxIWXAIF6tlv_Q5=kgqL0*_(6K;;a{s%rUvt9SO!Ig;?}zu!K;-Z}87*ZU72&YJ5<qUA;&^&&SSmq"
        b"?Q3CLZ-7HzD^xvRLlIqh91L$h{<4EqCQnFLGDpUXf(W%{=NwZbt5rWV76jN4?11kb6y1EVuBe7r6zwHzd_^E021STakN9vRm"
        b"%Xqh93hKNrs39VCW7+X>r|DIPUY3_#o~B6dVyml>Xhh(J6jB6Wmq&J<5WBp@CYv2=tj(G*WZEI>RdV(kdqrzxI>Sb;bxB6oz"
        b"X))Y@eWFS}(TSwTIP4P6u2E?->N=MkjP4P5D0pdjwwIgizrg$2n0`aPdy(4T5r+6A-{|5ue%3p{M000"
    ),
    ("kafka-python", "lz4"): (
        b"00000000000006H000000t-2^X8;2L000vJ00E)`wJGZW00E)`wJGcXvSDSRsxUbK00000000006a*qo7-&F<4gdfE00005#"
        b"{mEU{{z|r00004YcRk9c42IFWgsvh2mpoD0s?3PFxmnD0s;hUF|Pm<F|Pm*2mpTouK*A+uK+{@1Zy&{024B=01pTNe*mul5H"
        b"ha-L<R(FGp_&>Gp_&-2mpTouK*A;uK+{{1Zy;}024H?01pTNe*mul5Hzm<L<$6JHLm~@HLm~<2mpTouK*A=uK+|01Zy_0024"
        b"N^01pTNe*mul5H_y>L=FUNH?IH_H?IH>2mpTouK*A?uK+|41Zz02024T`01pTNe*mul5IC;@L=psRIj;Z{Ij;Z@2mpTouK=?"
        b"-h64Zs6b5TCFzD9?6fxKa4+#L0U;+YY1Tiqh096(SYcVm!00rg-4+#K~0mT3iF~tB?7zS%GGQ|J{{00vR0FnX401z_8096_W"
        b"YcVs$00a^T4+#L00mT3iGsOT^90qGKG{pb}C<hM-0FnX401!0A0976aYcVy&00ce<4+#L00mT3iHN^l`AO>qOHpKu0R0j_U0"
        b"FnX401!6C097IeYcV&)00e3W4+#L00mT3iH^l%|BnE3SIK==2fCmo=0FnX401!CE097UiYcV;+00fo?4+#L0U;+YY1Ti@P00"
        b"00"
    ),
    ("kafka-python", "snappy"): (
        b"000000000000075000000u#~Rw*UeF000vJ00E)`wJAgZ00E)`wJAj{8%f^qL?}`K00000000006oOMuK~PXx000000RR910"
        b"RR936Nnu|+5!Lo00e6=zyfw*Y;|QIFd+U20R9L7UI+jX0s?3PFafU&0t9O@5w8F-4X^$P0R9L7MhE}_uK+OtuM7kPYcdh905"
        b"T1){s;j62mnS100FN6G6Am)1_Wy}5w8F<4X^$P0R9L7MhE}_uK+UvuM7wTYcvtB05lD+{s;j62mnS100FN6Gy$&+3IuC45w8"
        b"F>4X^$P0R9L7MhE}_uK+axuM7+XYc>(D05%P;{s;j62mnS100FN6HUX~;4g_mA5w8F@4X^$P0R9L7MhE}_uK+gzuM7|bYd8_"
        b"F05}b={s;j62mnS100FN6I03H=5(H~G5w8F_4X^$P0R9L7MhE}_uP8Z&0{{RN25T`e=*`yvG11um2>|{H0Fns+6aoTh1TioH"
        b"#Sj(-YcVku#ntBi2>|{H0FDU&1;qd{0mTp)25T`g6~)o~{s{p72>_A_00qSWG6BU98U|}IGZn@068;GQ{s{n*2>=Df05bu_5"
        b"F7?;F*Fs$@hJWY0R9O8k_i9>#Q-z`#Sk6_YcVwy#qmD=2>|{H0Fns+1;qe00mTp?25T`k6~*yX{s{p72>_A_00qS)HiiQL0w"
        b"M-$F*g;(@oN4F0R9O8k_i9>#Q-+}#SkP0YcV(##qogt2>|{H0Fns+1;qe30mTp|25T`n6~*zE{s{p72>_A_02BfOXaq4i"
    ),
    ("kafka-python", "zstd"): (
        b"00000000000003j000000*?gJaR3AW000vJ00E)`wJSdW00E)`wJSdh9B;QYOW|w)00000000006ezVX{a}a<jRycyN+BeWM"
        b"d=Uv2jAUY_ld0|KW6^F*4}&Xz4!6;r}g*u_xD>_Ne&s$%4ELhZ^Sw0FQm2R?}IVs@3PkN*P)d1w~<ovmw^!ScVXLK#j!G(1I"
        b"OP4q9EYCcSShou7}pz)xa3L7S>u<f>P=_NGV+xA#_#S*F?<bB$K(EWm2I?08-#w5iy%wsIg&@of^X&;FW0&5&*>nG+m4T|KA"
        b"TG_$oPM9s&+k-@!x2mvyLnS|4(LhYq>Vz@hH2e28(_M@kZLciXhPBL6WPeI7^+_+$SzK5(MX1E~Rj=-<W%PV{*oHQ)~|{$x_"
        b"B$`-o{"
    ),
}


@pytest.mark.parametrize(("client", "codec"), _BATCHES)
def test_what_producers_compress_is_read(client: str, codec: str) -> None:
    batch = base64.b85decode(_BATCHES[client, codec])
    header = validate(batch)
    assert header.compression == Compression[codec.upper()]
    keys = [b"k%d" % number for number in range(20)]
    values = [b"value %d " % number * 20 for number in range(20)]
    fields, columns = decode_fields(batch), decode_columns(batch)
    assert fields.keys == columns.keys == keys
    assert fields.values == columns.values == values
    assert [decode_header_block(block) for block in fields.header_blocks] == columns.headers
    assert columns.headers[7] == [("h", b"7")]
    assert read_keys(*payload(batch, header, DECOMPRESSED_BYTES_MAX), header).keys == keys
    slabs, end = StreamReader().read([batch])
    assert [body for slab in slabs for body in slab.bodies] == values
    assert [slab.key_of(at) for slab in slabs for at in range(len(slab.bodies))] == [key.decode() for key in keys]
    assert end == 20


@pytest.mark.parametrize("codec", [one for one in Compression if one])
def test_a_batch_that_bursts_is_refused(codec: Compression) -> None:
    builder = BatchBuilder(0, 0, 1, compression=codec)
    builder.add(0, b"k", bytes(1 << 20))
    batch = builder.build()
    header = validate(batch)
    assert len(batch) < 100_000
    for read in (decode_fields, decode_columns):
        assert read(batch).keys == [b"k"]
        with pytest.raises(CorruptBatch, match=r"compress"):
            read(batch, decompressed_bytes_max=1 << 19)
    with pytest.raises(CorruptBatch, match=r"compress"):
        payload(batch, header, 1 << 19)


def test_snappy_that_lies_about_its_size_is_refused() -> None:
    builder = BatchBuilder(0, 0, 1)
    builder.add(0, b"k", b"v" * 100)
    plain = builder.build()
    raw = bytes(cramjam.snappy.compress_raw(plain[61:]))
    header = parse_header(plain)._replace(attributes=int(Compression.SNAPPY))
    assert decode_columns(encode_batch(header, raw)).values == [b"v" * 100]
    lying = b"\xff\xff\xff\xff\x0f" + raw[1:]
    framed = b"\x82SNAPPY\x00\0\0\0\1\0\0\0\1" + (1 << 31).to_bytes(4, "big") + raw
    for wrong in (lying, framed, framed[:18], raw[:-1]):
        with pytest.raises(CorruptBatch):
            decode_columns(encode_batch(header, wrong))
