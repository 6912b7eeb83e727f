/* svg_style.c - colours of the figures. Light is the default and what is printed; dark
 * only on a dark screen. The heat ramps are even steps in OKLab. */
#include "reports/svg.h"

const char *const kvm_svg_css[] = {
    ":root{--ink:#1c2530;--soft:#5a6673;--line:#d9dcd8;--paper:#fdfdfb;"
    "--c0:#1f7a74;--c1:#5560a8;--c2:#b5761c;--c3:#8d4f7f;--c4:#4d6a86;--c5:#b4553f;"
    "--c6:#6d7a2c;--c7:#3d8bb5;--anchor:#3d4b59;--anchor2:#93a1ae;--control:#d3c5a8;"
    "--control2:#b9c3bd;--control3:#b58f6a;--control4:#8f8398;--under:#e9c9b8;",
    "--h0:#f1f3ee;--h1:#dbe7e2;--h2:#c4dcd5;--h3:#a7ccc5;--h4:#82b9b3;--h5:#5ba6a0;"
    "--h6:#45948e;--h7:#2d837d;--h8:#1b706b;--h9:#145d5a;--h10:#0d4a49;--on:#fff}",
    "@media screen and (prefers-color-scheme:dark){:root{--ink:#e4e7e6;--soft:#9aa5ab;"
    "--line:#323b40;--paper:#14191c;"
    "--c0:#55b8a8;--c1:#939fe6;--c2:#dfa650;--c3:#cf8fc0;--c4:#88a9c9;--c5:#e08b72;"
    "--c6:#a9b85c;--c7:#74bce2;--anchor:#c3ccd3;--anchor2:#6e7d89;--control:#6f664f;"
    "--control2:#536059;--control3:#a08257;--control4:#857a92;--under:#5c392c;",
    "--h0:#20282b;--h1:#223437;--h2:#244144;--h3:#265052;--h4:#2b6362;--h5:#2f7672;"
    "--h6:#428e86;--h7:#55a69b;--h8:#71beb1;--h9:#93d5c6;--h10:#b5ecdc;--on:#0d1718}}",
    ".fig{display:block;width:100%;height:auto;overflow:visible}",
    ".fig text{font-size:11px;fill:var(--ink)}",
    ".fig .num,.fig .cell{font-variant-numeric:tabular-nums}",
    ".fig .num,.fig .label,.fig .muted{fill:var(--soft)}",
    ".fig .value{fill:var(--ink)}",
    ".fig .cell{font-size:10px}.fig .big{font-size:12px}.fig .on{fill:var(--on)}",
    ".fig .halo{paint-order:stroke;stroke:var(--paper);stroke-width:4px;"
    "stroke-linejoin:round}",
    ".fig .grid{stroke:var(--line);stroke-width:.8}",
    ".fig .axis{stroke:var(--soft);stroke-width:1}",
    ".fig .mark{stroke:var(--soft);stroke-width:1;stroke-dasharray:3 3}",
    ".fig .line{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round;"
    "stroke-linecap:round}",
    ".fig .dash{stroke-dasharray:1 4}",
    ".fig .dot{fill:var(--paper);stroke:var(--c);stroke-width:1.5}",
    ".fig .off{fill:var(--c)}",
    ".fig .crowd .line{stroke-width:1}.fig .crowd .dot{stroke:none;fill:none}"
    ".fig .band{fill:var(--c);opacity:.16}",
    ".fig .bar{fill:var(--c)}.fig .part{stroke:var(--paper);stroke-width:.8}",
    ".fig .whisker{fill:none;stroke:var(--ink);stroke-width:1.2;opacity:.75}",
    ".fig .cut{fill:none;stroke:var(--paper);stroke-width:2.5}",
    ".fig .hu{fill:var(--under)}",
    ".fig .hn{fill:none;stroke:var(--line);stroke-dasharray:2 2}",
    ".c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}"
    ".c4{--c:var(--c4)}.c5{--c:var(--c5)}.c6{--c:var(--c6)}.c7{--c:var(--c7)}",
    /* the arms, in the order of arms.def */
    ".a0{--c:var(--anchor)}.a1{--c:var(--anchor2)}.a2{--c:var(--c0)}.a3{--c:var(--c1)}"
    ".a4{--c:var(--c2)}.a5{--c:var(--control2)}.a6{--c:var(--control)}"
    ".a7{--c:var(--control3)}.a8{--c:var(--control4)}",
    ".r0{--c:var(--h1)}.r1{--c:var(--h2)}.r2{--c:var(--h3)}.r3{--c:var(--h3)}"
    ".r4{--c:var(--h4)}.r5{--c:var(--h5)}.r6{--c:var(--h6)}.r7{--c:var(--h7)}"
    ".r8{--c:var(--h8)}.r9{--c:var(--h9)}.r10{--c:var(--h10)}",
    ".h0{fill:var(--h0)}.h1{fill:var(--h1)}.h2{fill:var(--h2)}.h3{fill:var(--h3)}"
    ".h4{fill:var(--h4)}.h5{fill:var(--h5)}.h6{fill:var(--h6)}.h7{fill:var(--h7)}"
    ".h8{fill:var(--h8)}.h9{fill:var(--h9)}.h10{fill:var(--h10)}",
    NULL};
