/* page.h - a pair's report: one JSON document in, one self-contained HTML page out.
 *
 * The document is the whole interface: it says what was measured, the page decides how
 * to show it. Whoever fills it never writes HTML; whoever draws never computes a
 * metric. Every member but "format", "version" and "pair" is optional; what is absent
 * is shown as "not measured", with the reason that "absent" gives for the section. A
 * wrong type, an unknown section, arm or verdict is KVM_FORMAT with the place.
 *
 * EST, a figure:  0.93 | null | {"value": 0.93, "low": 0.9, "high": 0.96, "note": "…"}
 *   low/high: 95 % interval (quality), quartiles (seconds). value null: note says why.
 *   kvm_est_json makes one. Numbers are SI units: seconds, bytes, fractions.
 * ARM, a key of arms.def.  OBJ, any short name of a cached tensor: "k", "k_rotated",
 *   "v", "latent" ...; a "title" beside it is what people read.
 *
 * {
 *   "format": "kvmill.report", "version": 4,
 *   "sample": "why these numbers are no measurement",  -> a banner; omit for real runs
 *   "made": "2026-01-31T12:00:00Z",
 *   "pair": {"name": "small-large",                       file names derive from it
 *     "source": MODEL, "target": MODEL,
 *     "reverse": {"name": "large-small", "href": "large-small.html"}},
 *     MODEL: {"name": "small", "family": "qwen3", "parameters": 1100000, "layers": 4,
 *       "kv_heads": 2, "head_dim": 32, "context": 2048, "dtype": "bf16",
 *       "keeps": ["K", "V"]}                              spaces of its cache
 *
 *   "translator": {"arm": ARM, the one that the verdict speaks of; absent: the ARM with
 *                                the best mean floor-normalised retention
 *     "shape": "per target layer, k best source layers",
 *     "parameters": 98304, "bytes": 393216},
 *
 *   "calibration": {"text": "State of the Union 1961-2021", "sequences": 256,
 *     "sequence_tokens": 512, "stride": 4, "rows": 26214, "choosing_rows": 3277,
 *     "held_out_rows": 3277, "features": 256},
 *
 *   "gates": [{"name": "held_out_r2", "title": "Held-out R2, worst", "value": EST,
 *     "format": FORMAT, "need": "> 0.30", "verdict":
 *       "pass" | "fail" | "unmeasured" | "inapplicable",
 *     "required": true,          (default) a failed one makes it "does not serve"
 *     "where": "layer 3, V", "note": "..."}],
 *
 *   "recipes": {
 *     "token": "none" | "given" | "decoded",              what maps are told of it
 *     "identity": {"top1": EST, "rows": 3584},            held-out tokens decoded right
 *     "states": "zero" | "copy" | "bilinear" | "replay" | "auto",  where the target
 *                                                       keeps them; auto: layers differ
 *     "latents": 1 | 3,                                   capture point of latents
 *     "objects": [{"object": OBJ, "title": "K", "how": "keys from keys",
 *       "k": 2, "lambda": 1e-3, "absolute": false,
 *       "layers": [{"layer": 3, "sources": [7, 3],        numbers, best first
 *         "r2_fit": EST, "r2_choose": EST, "r2_held": EST,
 *         "r2_copy": EST,                                 held-out, before a correction
 *         "rows": 65536, "features": 256, "weight_norm": 1.1}]}],
 *     "tried": [{"title": "states copy, token none",      fits it was chosen among
 *       "kl": 0.03, "first_kl": 0.02,                     of the choosing lessons;
 *       "reason": "...",                                  null: it lost for it
 *       "parameters": 98304, "chosen": true}],
 *     "lessons": 30, "after": 64},                        that they were judged on
 *
 *   "training": {"steps": 400, "batch": 8, "lessons": 240, "validation": 30,
 *     "parameters": 98304, "seconds": 61.0, "tokens_per_s": 3100.0,
 *     "closed_kl": 0.03, "best_kl": 0.01, "best_step": 350,
 *     "curve": [{"step": 0, "kl": 0.03, "first_kl": 0.02,  on the validation lessons
 *       "train_kl": null, "norm": null,                   since the point before
 *       "rate": 0, "tokens_per_s": 0}]},
 *
 *   "linearity": {"groups": [{                            objects that share a choice
 *     "title": "K, V", "how": "keys from keys",
 *     "maps": [{"object": OBJ, "title": "K content", "r2": [[...], ...],
 *         R2 of one source layer alone, r2[source][target], null ok; as all R2 of this
 *         section on the rows that chose layers, k and lambda
 *       "source_layers": [3, 7], "target_layers": [...]}],  numbers; absent: from 0
 *     "greedy": [{"object": OBJ, "title": "K content",
 *       "layers": [{"target": 0, "order": [2,1], "r2": [0.61, 0.70]}]}],
 *     "k": {"k": [1,2,4,...],                             mean over layers
 *       "series": [{"title": "K content", "chosen": 4, "r2": [...]}]},
 *     "lambda": {"lambda": [1e-6,...],                    relative
 *       "series": [{"title": "K content", "chosen": 1e-3, "r2": [...]}],
 *       "absolute": {"lambda": 0.01, "relative": 6.7e-9,  where it falls on the axis
 *         "r2": [...]}}}]},                               one per series
 *
 *   "layers": {
 *     "objects": [{"object": OBJ, "title": "K"}],
 *     "arms": [{"arm": ARM, "rows": [{"layer": 0,
 *       "r2": [EST, ...],       of each object, held-out: nothing was chosen or fitted
 *                               on these rows
 *       "r2_fit": [EST, ...],                             in-sample
 *       "cosine": EST, "c_k": EST, "c_v": EST}]}]},
 *
 *   "suites": [{"name": "arc", "title": "ARC-Challenge", "metric": "accuracy",
 *     "format": FORMAT, "better": "high" | "low", "chance": 0.25, "items": 400,
 *     "note": "...",
 *     "secondary": true,       shown, but neither the means nor the verdict look at it
 *     "arms": {ARM: {"score": EST, "retention": EST, "floor_normalised": EST,
 *       "gap_recovered": EST, "versus_native": EST, "versus_control": EST,
 *       "versus_controls": {ARM: EST},                    less each control, paired
 *       "versus_closed": EST}}}],  of a trained translator: less the closed form
 *         kvm_comparison_json makes an arm's object
 *
 *   "needle": {"items": 40, "note": "...",                of each length
 *     "points": [{"tokens": 512, "achieved": 509, "bos": 1,
 *       "items": 40,                                      of this one, if they differ
 *       "arms": {ARM: EST}}]},
 *         recall (contained answer); needle points are also welcome among "suites"
 *
 *   "answers": [{"suite": "facts-qa", "items": 100,
 *     "arms": {ARM: {"tokens": EST,                       of an answer
 *       "versus_native": EST,                             less the target's own, paired
 *       "blank": EST, "empty": EST,                       shares of the items
 *       "first_agreement": EST}}}],
 *
 *   "timing": {"machine": "2 x ...", "threads": 2, "rounds": 10, "warmups": 2,
 *     "break_even": EST,                                  tokens; kvm_break_even
 *     "points": [{"tokens": 64, "rounds": 10,             of this length; absent: all
 *       "cold": EST, "switch": EST,                       median s, quartiles
 *       "speedup": EST,                                   cold/switch, rounds' ratio
 *       "cold_stages": {"prefill": s, "first_decode": s},
 *       "switch_stages": {"transfer": s, "translate": s, "inject": s},
 *                                                         any names, in this order
 *       "computed_bytes": b,                              not measured: tokens x rows
 *         of the source layers that are read and of all target layers, as an engine
 *         stores them
 *       "peak_bytes": b, "translate_tokens_per_s": x, "note": "..."}]},
 *
 *   "build": {"steps": [{"title": "capture small", "seconds": 41.0,
 *       "cpu_seconds": 79.0, "attempts": 1,               all attempts together
 *       "serves": "model" | "directions" | "direction"}], every pair of the model, both
 *                                                       directions of this one, or one;
 *                                                       never absent
 *     "bytes": 393216,                                    the translator's file
 *     "amortise": [{"tokens": 2048, "switches": EST}]},   kvm_amortise
 *
 *   "ablations": {"columns": [{"title": "Validation KL", "format": FORMAT,
 *       "suite": "prose", "metric": "kl", "native": EST,  the target's own score
 *       "tokens": 512, "beyond": 512,                     needles of, or above a length
 *       "items": 100}],
 *     "rows": [{"name": "rotated", "title": "fit on rotated", "cells": [EST, ...],
 *       "versus": [EST, ...],                             less the complete row, paired
 *       "note": "..."}]},
 *
 *   "analyses": {
 *     "suites": [{"name": "prose.kl", "title": "prose: KL to native", "suite": "prose",
 *       "translator": ARM, "metric": "...",
 *       "format": FORMAT, "better": "low", "items": 20, "native": EST,
 *       "caches": [{"group": "" | "swap" | "split" | "tail", "title": "layer 3 native",
 *         "name": "layer.3",
 *         "share": 0.05, "score": EST,                    share: of a tail
 *         "versus": EST}],                                less the first one's, paired:
 *                                                         it is the translated cache
 *       "best_layer": {"cache": "layer.3", "title": "layer 3 native",
 *         "chosen_on": 10, "items": 10,                   one half of the items each
 *         "translated": EST, "all": EST, "score": EST, "versus": EST, of the half that
 *         "share": EST},                                  did not choose: of what all
 *                                                         native restores
 *       "indexers": [{"title": "translated",              in its first measure, of
 *         "overlap": EST, "needle": EST}]}],              targets that choose tokens:
 *                                                         jobs/selection.h
 *     "tails": [{"tokens": 1024, "rounds": 10, "cold": EST,
 *       "switches": [{"share": 0.05, "seconds": EST, "speedup": EST}]}]},
 *
 *   "inversion": {"rows": 6144, "vocab": 2048,            held-out rows
 *     "series": [INVERTED], "codebook": INVERTED},
 *     INVERTED: {"model": "mla", "side": "source", "object": "latent", "point": 1,
 *       "features": 80, "layers": [{"layer": 0, "top1": EST, "r2": 0.9}]}
 *
 *   "alternation": {"suite": "dialogues", "dialogues": 50, "refresh": 4,
 *     "translator": ARM,                                  in both directions
 *     "conditions": [{"key": "native" | "segment" | "naive" | "refresh",
 *       "title": "all translated again",
 *       "turns": [{"turn": 1, "model": "source" | "target", "f1": EST, "gold": EST,
 *         "first_kl": EST, "answer_tokens": 9.5,
 *         "seconds": EST, "seconds_so_far": EST,          medians over the dialogues
 *         "versus_native": EST, "versus_segment": EST}],  of f1, paired by dialogue
 *       "f1": EST, "gold": EST,                           means over the turns
 *       "versus_native": EST, "versus_segment": EST,
 *       "gold_versus_native": EST, "gold_versus_segment": EST}]},
 *
 *   "findings": [{"key": "zero_states", "statement": "...", "source": "...",
 *     "criterion": "...",                                 reports/findings.def
 *     "verdict": "reproduced" | "not_reproduced" | "undecided" | "not_measured" |
 *       "inapplicable", "text": "the figures, or what is missing"}],
 *
 *   "provenance": [{"title": "Models", "rows": [["small", "sha256 ..."], ...]}],
 *   "spec": "the pair's YAML or JSON, as text",
 *   "notes": ["anything a reader must know", ...],
 *   "absent": {"timing": "the spec asks for none"}        section -> reason
 * }
 *
 * FORMAT: "percent" (of a fraction) | "number" | "r2" | "ratio" | "seconds" | "bytes" |
 *   "count" | "rate" | "s" | "ms" | "us" (of seconds); default "number".
 *
 * The verdict looks at suites that are not secondary and have at least KVM_LEAST_ITEMS
 * items (or do not say how many): on them rest the means, and they are held against the
 * controls. "Surely" is said of a 95 % interval clear of zero, widened for the number
 * of comparisons with controls on all of these suites (kvm_widening).
 *
 * Its words (KVM_SERVES_*), the first that holds: "does not serve" when a required gate
 * failed, or the mean floor-normalised retention is below 0.50; "worse than a control"
 * when one of them (raw source, wrong donor, zero) surely scores better than the
 * translated cache on such a suite; "not decided" when a required gate or quality was
 * not measured, or quality on too few items, or on no suite of that mean the target on
 * its own cache surely beats any control; "serves in part" when that mean is below
 * 0.90, or on some suite the target on its own cache surely beats a control that the
 * translated cache does not; else "serves". An "inapplicable" gate counts nowhere. */
#ifndef KVM_REPORTS_PAGE_H
#define KVM_REPORTS_PAGE_H

#include "base/json.h"

#define KVM_REPORT_FORMAT "kvmill.report"
enum { KVM_REPORT_VERSION = 4 };

/* kvm_page_html - append the whole page to out. On error out may hold a part of it. */
KVM_MUST kvm_status kvm_page_html(kvm_text *out, kvm_jat doc, kvm_arena scratch,
                                  kvm_err *err);

/* kvm_report_publish - NAME.html, NAME.json and NAME.<table>.csv into dir (made if
 * absent), each whole or not at all; NAME is pair.name, which must be a plain file
 * name. */
KVM_MUST kvm_status kvm_report_publish(kvm_str dir, kvm_jat doc, kvm_arena scratch,
                                       kvm_err *err);

/* kvm_report_verdict - the headline ("The translated cache serves.") and the sentence
 * that supports it, as plain text in keep: for the terminal and the catalogue. */
KVM_MUST kvm_status kvm_report_verdict(kvm_str *headline, kvm_str *sentence,
                                       kvm_arena *keep, kvm_jat doc, kvm_err *err);

#endif
