/* SPDX-License-Identifier: Apache-2.0 */
/* The style sheet: light, dark and print. The colours of curves are those of Okabe and Ito, which colour-blind readers
 * can tell apart; curves also have markers and dashes of their own. */
#include "page.h"

#define LIGHT                                                                                                          \
    "--paper:#fff;--ink:#1a1a1a;--soft:#595959;--line:#d6d6d6;--card:#f6f7f9;--good:#00664b;--bad:#a8320a;"            \
    "--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#b3538f;--c4:#8a6a00;--c5:#3a8fc4;--c6:#555;--c7:#7a4fb5;"
#define DARK                                                                                                           \
    "--paper:#14171a;--ink:#eceff1;--soft:#a9b2b9;--line:#3a4147;--card:#1d2226;--good:#4fd1a5;--bad:#ff9b73;"         \
    "--c0:#56b4e9;--c1:#ff9b52;--c2:#2fc79a;--c3:#e39ac5;--c4:#f0c14b;--c5:#8fd0f5;--c6:#b5b5b5;--c7:#bd9df0;"

const char style_sheet[] =
    ":root{color-scheme:light dark;" LIGHT "}"
    "@media(prefers-color-scheme:dark){:root{" DARK "}}"
    "@media print{:root{color-scheme:light;" LIGHT
    "}figure,table,.card{break-inside:avoid}h2,h2+p{break-after:avoid}body{font-size:9pt}}"
    "*{box-sizing:border-box}"
    "body{margin:0 auto;max-width:1500px;padding:16px;font:15px/1.45 system-ui,sans-serif;background:var(--paper);"
    "color:var(--ink);overflow-wrap:anywhere}"
    "h1{font-size:1.5em;margin:0 0 4px}h2{font-size:1.15em;margin:28px 0 8px;border-bottom:1px solid var(--line);"
    "padding-bottom:4px}h3{font-size:.9em;margin:0 0 6px;font-weight:600}p{margin:4px 0 10px;color:var(--soft)}"
    "code{font:13px/1.4 ui-monospace,monospace}code span{display:inline-block;max-width:100%}"
    ".grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,330px),1fr));gap:16px}"
    "figure,.card{margin:0;padding:12px;border:1px solid var(--line);border-radius:8px;background:var(--card);"
    "min-width:0}"
    "figure>svg{width:100%;height:auto;display:block;max-height:420px}"
    "figcaption{font-size:.8em;color:var(--soft);margin-top:6px}figcaption span{margin-right:12px;"
    "display:inline-block}"
    ".card b{display:block;font-size:1.35em}.card small{color:var(--soft);display:block}"
    ".ok{color:var(--good)}.bad,.slower{color:var(--bad);font-weight:600}.faster{color:var(--good);font-weight:600}"
    ".note{border-left:4px solid var(--bad);padding:6px 12px;background:var(--card);color:var(--ink)}"
    "svg text{font:11px system-ui,sans-serif;fill:var(--soft)}"
    ".grid line,svg line.grid{stroke:var(--line);stroke-width:1}"
    "svg path{fill:none;stroke-linejoin:round}.median{stroke-width:2}.limit{stroke-width:1.5;stroke-dasharray:6 4}"
    ".mpi{stroke-width:1.5;stroke-dasharray:2 3}svg .mark{stroke:none}"
    ".s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}.s4{stroke:var(--c4)}"
    ".s5{stroke:var(--c5)}.s6{stroke:var(--c6)}.s7{stroke:var(--c7)}"
    ".one .limit{stroke:var(--c1)}.one .mpi{stroke:var(--c3)}"
    "svg .mark.s0{fill:var(--c0)}svg .mark.s1{fill:var(--c1)}svg .mark.s2{fill:var(--c2)}svg .mark.s3{fill:var(--c3)}"
    "svg .mark.s4{fill:var(--c4)}svg .mark.s5{fill:var(--c5)}svg .mark.s6{fill:var(--c6)}svg .mark.s7{fill:var(--c7)}"
    ".key{width:26px;height:10px;margin-right:4px;overflow:visible}"
    ".heat{fill:var(--c0)}.frame{fill:none;stroke:var(--line)}svg text.on{fill:var(--paper)}svg text.off{"
    "fill:var(--ink)}.bar{fill:var(--c0)}svg line.ideal{stroke:var(--c1);stroke-width:2;stroke-dasharray:6 4}"
    ".scroll{overflow-x:auto;margin-bottom:14px;min-width:0}table{border-collapse:collapse;font-size:.82em;"
    "font-variant-numeric:tabular-nums}caption{text-align:left;font-weight:600;padding:4px 0}"
    "th,td{overflow-wrap:normal;white-space:nowrap;padding:2px 8px;border-bottom:1px solid "
    "var(--line);text-align:right;vertical-align:top}"
    "th{color:var(--soft);font-weight:600}.word,.pairs th,.spans th{text-align:left}.word,.spans th,.spans "
    "td{white-space:normal;overflow-wrap:anywhere}.word{min-width:7em}.spans{width:100%}"
    ".spans th{width:11em}.spans td{text-align:left}"
    ".stack{display:flex;height:16px;width:100%}.stack i{display:block;height:100%}.dot{display:inline-block;width:9px;"
    "height:9px;margin-right:3px}.track{height:10px;background:var(--line);min-width:60px}.track i{display:block;"
    "height:100%;background:var(--c0)}.track .l{background:var(--c1)}.track .m{background:var(--c3)}"
    ".b0{background:var(--c0)}.b1{background:var(--c1)}.b2{background:var(--c2)}.b3{background:var(--c3)}"
    ".b4{background:var(--c4)}.b5{background:var(--c5)}.b6{background:var(--c6)}.b7{background:var(--c7)}"
    "@media print{.scroll{overflow:visible}}";
