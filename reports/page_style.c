/* page_style.c - the page around the figures. Colours come from svg_style.c; here only
 * good, warn and bad are added. One column of at most 68rem, tables and wide figures
 * scroll inside their own box, and print breaks between sections, not inside
 * figures. */
#include "reports/page_internal.h"

const char *const kvm_page_css[] = {
    ":root{color-scheme:light dark;--good:#2b7a4b;--warn:#9a6a10;--bad:#a8402f;"
    "--wash:#f4f4f0}",
    "@media screen and (prefers-color-scheme:dark){:root{--good:#74c795;--warn:#e0b25c;"
    "--bad:#ec8f7c;--wash:#1b2226}}",
    "*{box-sizing:border-box}",
    "html{-webkit-text-size-adjust:100%}",
    "body{margin:0;background:var(--paper);color:var(--ink);"
    "font:16px/1.55 Inter,\"Source Sans 3\",system-ui,-apple-system,\"Segoe "
    "UI\",Roboto,"
    "\"Noto Sans\",\"Liberation Sans\",sans-serif}",
    ".fig text{font-family:inherit}",
    "main,header,footer{max-width:68rem;margin:0 auto;padding:0 1.25rem}",
    "header{padding-top:2rem}footer{padding-top:1rem;padding-bottom:3rem;"
    "color:var(--soft);font-size:.85rem}",
    "a{color:var(--c0);text-underline-offset:.15em}",
    ".kicker{margin:0;color:var(--soft);font-size:.85rem;display:flex;flex-wrap:wrap;"
    "gap:.2rem 1.2rem;justify-content:space-between}",
    "h1{margin:.3rem 0 .4rem;font-size:clamp(1.5rem,4.5vw,2.1rem);line-height:1.2;"
    "font-weight:650;letter-spacing:-.01em;overflow-wrap:anywhere}",
    "h1 .to{color:var(--soft);font-weight:400}",
    "h2{margin:0 0 .4rem;font-size:1.3rem;font-weight:650;letter-spacing:-.005em}",
    "h3{margin:1.8rem 0 .3rem;font-size:1rem;font-weight:650}",
    "section{margin-top:3rem;padding-top:1.2rem;border-top:1px solid var(--line)}",
    ".models{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),"
    "1fr));gap:.2rem 2rem;margin:0;color:var(--soft);font-size:.9rem}",
    ".models b{color:var(--ink);font-weight:600;overflow-wrap:anywhere}",
    ".sample{margin:1rem 0 0;padding:.6rem .9rem;border:1px dashed var(--warn);"
    "border-radius:6px;color:var(--warn);font-size:.9rem}",
    ".verdict{margin-top:1.6rem;padding:1.3rem 1.4rem 1.4rem;background:var(--wash);"
    "border-left:4px solid var(--tone);border-radius:0 8px 8px 0}",
    ".verdict h2{margin:0 0 "
    ".5rem;font-size:clamp(1.3rem,3.6vw,1.7rem);line-height:1.25;"
    "color:var(--tone)}",
    ".verdict p{margin:0;max-width:48rem}",
    ".t-good{--tone:var(--good)}.t-warn{--tone:var(--warn)}.t-bad{--tone:var(--bad)}"
    ".t-muted{--tone:var(--soft)}",
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));"
    "gap:1.1rem 1.4rem;margin:1.3rem 0 0}",
    ".tiles div{border-top:1px solid var(--line);padding-top:.45rem}",
    ".tiles dt{font-size:.8rem;color:var(--soft);line-height:1.3}",
    ".tiles dd{margin:.1rem 0 0;font-size:1.45rem;font-weight:600;line-height:1.25;"
    "font-variant-numeric:tabular-nums}",
    ".tiles dd small{display:block;font-size:.78rem;font-weight:400;color:var(--soft)}",
    ".tiles dd.none{font-size:1rem;font-weight:400;color:var(--soft)}",
    "ul.lede{margin:1.2rem 0 0;padding-left:1.1rem}",
    "nav{margin-top:1.3rem;font-size:.88rem;display:flex;flex-wrap:wrap;"
    "gap:.25rem 1.1rem}",
    ".lede{max-width:48rem;margin:.2rem 0 .8rem;color:var(--soft);font-size:.94rem}",
    ".absent{margin:.4rem 0;color:var(--soft);font-style:italic}",
    ".grid{display:grid;gap:1.8rem 2.2rem;margin:1.2rem 0;align-items:start}",
    ".g2{grid-template-columns:repeat(auto-fit,minmax(min(100%,23rem),1fr))}",
    ".g3{grid-template-columns:repeat(auto-fit,minmax(min(100%,19rem),1fr))}",
    ".beside{min-width:0;align-self:center}",
    "figure{margin:0;min-width:0;max-width:34rem}",
    "figcaption{margin-bottom:.55rem;line-height:1.35}",
    "figcaption b{font-weight:600;font-size:.95rem}",
    "figcaption span{display:block;color:var(--soft);font-size:.82rem}",
    ".scroll{overflow-x:auto;overflow-y:hidden;max-width:100%}",
    ".key{display:flex;flex-wrap:wrap;gap:.25rem 1.3rem;margin:.6rem 0 0;"
    "font-size:.85rem}",
    ".key dt,.key dd{display:inline}",
    ".key dt{font-weight:600}.key dt::before{content:\"\";display:inline-block;"
    "width:.7em;height:.7em;margin-right:.4em;border-radius:2px;background:var(--c)}",
    ".key dd{margin:0 0 0 .4em;color:var(--soft)}",
    "table{border-collapse:collapse;width:100%;font-size:.88rem;"
    "font-variant-numeric:tabular-nums}",
    "th,td{padding:.36rem .9rem .36rem 0;text-align:left;vertical-align:baseline}",
    "th:last-child,td:last-child{padding-right:.2rem}",
    "thead th{color:var(--soft);font-weight:500;font-size:.82rem;"
    "border-bottom:1px solid var(--soft);vertical-align:bottom;line-height:1.3}",
    "tbody{border-bottom:1px solid var(--line)}",
    "tbody th{font-weight:600}",
    "td{min-width:5.8rem}td:last-child:not(.n){min-width:11rem}",
    ".n{text-align:right;white-space:nowrap;min-width:0}",
    "thead .n{white-space:normal}",
    ".tall small{display:block;line-height:1.2}",
    "tbody th{min-width:7rem}",
    "small{color:var(--soft);font-size:.85em}",
    "sup{font-size:.7em;color:var(--soft);line-height:0}",
    ".good{color:var(--good)}.warn{color:var(--warn)}.bad{color:var(--bad)}"
    ".muted{color:var(--soft)}.strong{font-weight:600}",
    ".good,.warn,.bad{font-weight:600;white-space:nowrap}",
    ".findings dt{margin-top:1rem;font-weight:600}"
    ".findings dt span{display:inline-block;min-width:9.5rem}"
    ".findings dd{margin:.15rem 0 0;max-width:52rem}"
    ".findings small{display:block;margin-top:.15rem}",
    ".foot{margin:.5rem 0;color:var(--soft);font-size:.82rem;max-width:60rem}",
    ".foot span{margin-right:1em}",
    ".columns{display:grid;gap:1.5rem 3rem;align-items:start;"
    "grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr))}",
    ".columns>div{min-width:0}",
    "details{margin:1rem 0}summary{cursor:pointer;color:var(--c0);font-size:.92rem}",
    "details[open] summary{margin-bottom:.6rem}",
    "#provenance td{overflow-wrap:anywhere}#provenance td:last-child{"
    "font-family:ui-monospace,\"SF Mono\",Menlo,\"DejaVu Sans Mono\",monospace;"
    "font-size:.82em;min-width:14rem}",
    "pre{margin:.4rem 0;padding:.9rem 1rem;background:var(--wash);border-radius:6px;"
    "overflow-x:auto;font:.8rem/1.5 ui-monospace,\"SF Mono\",Menlo,\"DejaVu Sans "
    "Mono\",monospace}",
    "@media (max-width:30rem){main,header,footer{padding-left:1rem;padding-right:1rem}"
    ".verdict{padding:1rem;margin-left:-1rem;margin-right:-1rem;border-radius:0}"
    ".tiles{grid-template-columns:1fr 1fr}section{margin-top:2.2rem}}",
    "@media print{@page{margin:16mm 14mm}:root{--paper:#fff}body{font-size:10pt}"
    ".tiles{grid-template-columns:repeat(6,1fr)}.columns{break-inside:avoid;"
    "grid-template-columns:1fr 1fr;gap:1.5rem}#gates,#ablations{break-inside:avoid}"
    "main,header,footer{max-width:none;padding:0}nav,summary{display:none}"
    "section{break-before:auto;margin-top:1.6rem}h2,h3,.lede,figcaption{break-after:"
    "avoid}.lede{break-inside:avoid}.beside{grid-column:1/-1}"
    "td,td:last-child:not(.n){min-width:0}"
    "figure,tr,.verdict,.tiles,.findings dd{break-inside:avoid}.findings dt{"
    "break-after:avoid}.scroll{overflow:visible}"
    ".g2{grid-template-columns:1fr 1fr}.g3{grid-template-columns:1fr 1fr 1fr}"
    ".grid{gap:1.2rem 1.4rem}table{font-size:8.5pt}th,td{padding-right:.6rem}"
    "thead{display:table-header-group}pre{white-space:pre-wrap}"
    "*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}",
    NULL};
