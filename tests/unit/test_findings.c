/* Findings: made-up documents for every verdict that a row of findings.def can have. */
#include "reports/findings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reports/page.h"
#include "tests/support/check.h"

#define E(value, low, high) "{\"value\":" #value ",\"low\":" #low ",\"high\":" #high "}"
#define V(value) E(value, value, value)

/* ---- documents ---- */

/* models by what they keep, and more members of the document */
#define DOC(source, target, more)                                                      \
    "{\"format\":\"kvmill.report\",\"version\":4,\"pair\":{\"name\":\"a-b\","          \
    "\"source\":{\"name\":\"A\",\"keeps\":[" source                                    \
    "]},\"target\":{\"name\":\"B\",\"keeps\":[" target "]}}" more "}"
#define KV "\"K\",\"V\""
#define LATENTS "\"latent\""
#define HYBRID "\"latent\",\"state\""
#define GATED "\"K\",\"V\",\"state\""
#define INDEXED "\"K\",\"V\",\"state\",\"index\""

/* KL of plain text, recall of needles, recall beyond 512 tokens; the target's own is
 * 0, 1 and 1 */
#define ABLATED(kl, recall, beyond, name, cells, versus)                               \
    ",\"ablations\":{\"columns\":["                                                    \
    "{\"title\":\"KL\",\"suite\":\"prose\",\"metric\":\"kl\",\"native\":0},"           \
    "{\"title\":\"recall at 512\",\"suite\":\"needle\",\"metric\":\"recall\","         \
    "\"tokens\":512,\"native\":1},"                                                    \
    "{\"title\":\"recall\",\"suite\":\"needle\",\"metric\":\"recall\",\"native\":1},"  \
    "{\"title\":\"recall\",\"suite\":\"needle\",\"metric\":\"recall\",\"beyond\":512," \
    "\"native\":1}],\"rows\":[{\"name\":\"none\",\"title\":\"complete\",\"cells\":"    \
    "[" kl ",0.5," recall "," beyond "]},{\"name\":\"" name                            \
    "\",\"title\":\"ablated\",\"cells\":[" cells "],\"versus\":[" versus "]}]}"
#define CELLS(kl, recall, beyond) kl ",0.5," recall "," beyond
#define RECALL(name, recall, versus)                                                   \
    ABLATED("0.02", E(0.98, 0.96, 1), E(0.98, 0.96, 1), name,                          \
            CELLS("0.03", recall, recall), CELLS("0.01", versus, versus))
#define LOST RECALL("zero_states", E(0.1, 0.05, 0.2), E(-0.88, -0.95, -0.8))
/* what an empty cache scores on the plain text */
#define ZERO(kl)                                                                       \
    ",\"suites\":[{\"name\":\"prose.kl\",\"better\":\"low\",\"arms\":{\"zero\":{"      \
    "\"score\":" kl "}}}]"
#define STATES(way) ",\"recipes\":{\"token\":\"decoded\",\"states\":\"" way "\"}"
#define COPIED(versus)                                                                 \
    STATES("bilinear")                                                                 \
    ABLATED("0.02", "1", "1", "copy_states", CELLS("0.03", "1", "1"),                  \
            CELLS(versus, "0", "0"))

/* caches taken apart, of one measure: translated, then "NAME": score and difference */
#define CACHE(name, score, versus)                                                     \
    ",{\"name\":\"" name "\",\"group\":\"swap\",\"title\":\"" name                     \
    "\",\"score\":" score ",\"versus\":" versus "}"
#define APART(name, better, translated, caches)                                        \
    APART_AND(name, better, translated, caches, "")
#define APART_AND(name, better, translated, caches, more)                              \
    "{\"name\":\"" name "\",\"title\":\"" name "\",\"translator\":\"closed_form\","    \
    "\"better\":\"" better "\",\"caches\":[{\"name\":\"translated\",\"group\":\"\","   \
    "\"title\":\"translated\",\"score\":" translated "}" caches "]" more "}"
/* of the items that did not choose it: translated, then the layer, all native, share */
#define BEST(layer, translated, score, versus, all, share)                             \
    ",\"best_layer\":{\"cache\":\"" layer "\",\"title\":\"" layer                      \
    "\",\"chosen_on\":50,\"translated\":" translated ",\"score\":" score               \
    ",\"versus\":" versus ",\"all\":" all ",\"share\":" share "}"
#define ANALYSES(list) ",\"analyses\":{\"suites\":[" list "]}"
/* layers that hold next to nothing */
#define OTHERS(score)                                                                  \
    CACHE("layer.0", score, E(-0.001, -0.01, 0.01))                                    \
    CACHE("layer.1", score, E(-0.001, -0.01, 0.01))                                    \
    CACHE("layer.2", score, E(-0.001, -0.01, 0.01))
#define LAYERS(best, versus)                                                           \
    OTHERS("0.099")                                                                    \
    CACHE("layer.3", best, versus) CACHE("swap.all", "0", E(-0.1, -0.11, -0.09))
/* on all items layer 3 is 0.02, so it takes off 80 % of 0.1; on those that did not
 * choose it, this */
#define PROSE(score, versus, share)                                                    \
    APART_AND("prose.kl", "low", "0.1", LAYERS("0.02", E(-0.08, -0.09, -0.07)),        \
              BEST("layer.3", "0.1", score, versus, "0", share))
#define MOSTLY PROSE("0.02", E(-0.08, -0.09, -0.07), E(0.8, 0.7, 0.9))
#define HALVES(attention, less_attention, states, less_states)                         \
    ANALYSES(APART("needle.recall", "high", "0.9",                                     \
                   CACHE("only.attention", attention, less_attention)                  \
                       CACHE("only.states", states, less_states)))

#define CHOSEN(needle) CHOSEN_OF("0.99", needle)
#define CHOSEN_OF(native, needle)                                                      \
    ANALYSES(                                                                          \
        "{\"name\":\"needle.recall\",\"title\":\"needle\","                            \
        "\"translator\":\"closed_form\",\"indexers\":["                                \
        "{\"title\":\"native\",\"needle\":" native "},{\"title\":\"layer 3 native\","  \
        "\"needle\":1},{\"title\":\"translated\",\"overlap\":0.7,\"needle\":" needle   \
        "}]}")

#define GOLDEN_TURNS(naive, segment)                                                   \
    ",\"alternation\":{\"translator\":\"closed_form\",\"conditions\":["                \
    "{\"key\":\"segment\",\"f1\":0.9,\"versus_native\":0,\"gold\":0.7,"                \
    "\"gold_versus_native\":" segment                                                  \
    "},{\"key\":\"naive\",\"f1\":0.9,\"versus_segment\":0,\"gold\":0.6,"               \
    "\"gold_versus_segment\":" naive "}]}"

#define TURNS(naive, segment)                                                          \
    ",\"alternation\":{\"translator\":\"closed_form\",\"conditions\":["                \
    "{\"key\":\"segment\",\"f1\":0.6,\"versus_native\":" segment                       \
    "},{\"key\":\"naive\",\"f1\":0.2,\"versus_segment\":" naive "}]}"

#define TRAINED(versus)                                                                \
    ",\"training\":{\"steps\":400},\"suites\":[{\"name\":\"prose.kl\","                \
    "\"title\":\"prose\",\"better\":\"low\",\"arms\":{\"closed_form\":{\"score\":0.02" \
    "},\"distilled\":{\"score\":0.01,\"versus_closed\":" versus "}}}]"
#define INVERSION(series) ",\"inversion\":{\"series\":[" series "]}"
#define SERIES(side, layer, top1)                                                      \
    "{\"model\":\"A\",\"side\":\"" side "\",\"object\":\"latent\",\"point\":1,"        \
    "\"layers\":[{\"layer\":" layer ",\"top1\":" top1 "}]}"

/* ---- what is found in them ---- */

enum { YES, NO, OPEN, UNMEASURED, NEVER };
static const struct {
    const char *key;
    int verdict;
    const char *says; /* part of the text */
    const char *doc;
} cases[] = {
    {"token_identity", YES, "recall without the token (an ablation) 10.0",
     DOC(LATENTS, HYBRID, RECALL("no_token", E(0.1, 0.05, 0.2), E(-0.88, -0.9, -0.8)))},
    /* it is kept without the token */
    {"token_identity", NO, "90.0",
     DOC(LATENTS, HYBRID,
         RECALL("no_token", E(0.9, 0.85, 0.95), E(-0.08, -0.12, -0.02)))},
    /* it is lost with the token as well */
    {"token_identity", NO, "the target’s own",
     DOC(LATENTS, HYBRID,
         ABLATED("0.02", E(0.5, 0.4, 0.6), "1", "no_token", CELLS("1", "0.1", "1"),
                 CELLS("1", E(-0.4, -0.5, -0.3), "0")))},
    {"token_identity", OPEN, "difference",
     DOC(LATENTS, HYBRID, RECALL("no_token", E(0.4, 0.3, 0.45), E(-0.1, -0.3, 0.1)))},
    {"token_identity", UNMEASURED, "evaluate.ablations: [no_token]",
     DOC(LATENTS, HYBRID, RECALL("engine", "0", "0"))},
    {"token_identity", UNMEASURED, "fit.token",
     DOC(LATENTS, HYBRID, ",\"recipes\":{\"token\":\"none\"}")},
    {"token_identity", YES,
     "99.5], of 3,584 held-out rows; "
     "recall without the token (an ablation) 10.0",
     DOC(LATENTS, HYBRID,
         ",\"recipes\":{\"token\":\"decoded\",\"identity\":{\"rows\":3584,"
         "\"top1\":" E(0.99, 0.98, 0.995) "}}" RECALL("no_token", E(0.1, 0.05, 0.2),
                                                      E(-0.88, -0.9, -0.8)))},
    {"token_identity", NEVER, "latents", DOC(KV, KV, "")},
    {"token_identity", NEVER, "latents", DOC(HYBRID, LATENTS, "")},

    {"zero_states", YES, "of an empty cache 0.4", DOC(KV, GATED, LOST ZERO("0.4"))},
    {"zero_states", NO, "recall without states 85.0",
     DOC(KV, GATED,
         RECALL("zero_states", E(0.85, 0.8, 0.9), E(-0.13, -0.2, -0.1)) ZERO("0.4"))},
    /* KL tells of the loss too */
    {"zero_states", NO, "KL without states 0.03", DOC(KV, GATED, LOST ZERO("0.05"))},
    {"zero_states", OPEN, "",
     DOC(KV, GATED,
         RECALL("zero_states", E(0.45, 0.3, 0.6), E(-0.5, -0.6, -0.4)) ZERO("0.4"))},
    {"zero_states", UNMEASURED, "[zero_states]", DOC(KV, GATED, "")},
    {"zero_states", UNMEASURED, "the empty cache", DOC(KV, GATED, LOST)},
    {"zero_states", UNMEASURED, "fit.states", DOC(KV, GATED, STATES("zero"))},
    {"zero_states", NEVER, "no states", DOC(KV, KV, LOST ZERO("0.4"))},

    {"state_correction", YES, "difference 0.01",
     DOC(GATED, GATED, COPIED(E(0.01, 0.005, 0.02)))},
    {"state_correction", NO, "", DOC(GATED, GATED, COPIED(E(-0.01, -0.02, -0.005)))},
    {"state_correction", OPEN, "", DOC(GATED, GATED, COPIED(E(0.01, -0.005, 0.02)))},
    {"state_correction", UNMEASURED, "[copy_states]",
     DOC(GATED, GATED, STATES("bilinear"))},
    {"state_correction", UNMEASURED, "fit.states: bilinear",
     DOC(GATED, GATED, STATES("replay"))},
    {"state_correction", NEVER, "one of the two", DOC(LATENTS, HYBRID, "")},

    {"one_layer", YES, "layer.3, chosen on 50 items", DOC(KV, KV, ANALYSES(MOSTLY))},
    /* the items that chose it say 80 % */
    {"one_layer", NO, "30.0",
     DOC(KV, KV, ANALYSES(PROSE("0.07", E(-0.03, -0.04, -0.02), E(0.3, 0.2, 0.4))))},
    {"one_layer", OPEN, "",
     DOC(KV, KV, ANALYSES(PROSE("0.02", E(-0.08, -0.19, 0.01), E(0.8, 0.7, 0.9))))},
    /* the share has an interval too */
    {"one_layer", OPEN, "60.0",
     DOC(KV, KV, ANALYSES(PROSE("0.04", E(-0.06, -0.07, -0.05), E(0.6, 0.4, 0.8))))},
    /* recall that no layer gives back, beside a loss that one does */
    {"one_layer", NO, "needle.recall",
     DOC(KV, KV,
         ANALYSES(MOSTLY
                  "," APART_AND("needle.recall", "high", "0.2",
                                OTHERS("0.2") CACHE("layer.3", "0.3", E(0.1, 0.05, 0.2))
                                    CACHE("swap.all", "1", V(0.8)),
                                BEST("layer.3", "0.2", "0.3", E(0.1, 0.05, 0.2), "1",
                                     E(0.125, 0.06, 0.25)))))},
    /* one of two layers holds half of whatever there is */
    {"one_layer", NEVER, "layer.3: cannot tell, only 2 layers keep the like",
     DOC(KV, GATED,
         ",\"recipes\":{\"objects\":[{\"object\":\"state\",\"layers\":[{\"layer\":0},{"
         "\"layer\":1},{\"layer\":2}]},{\"object\":\"k\",\"layers\":[{\"layer\":3},{"
         "\"layer\":7}]}]}" ANALYSES(MOSTLY))},
    /* ... so a loss that it holds leaves open what recall says alone */
    {"one_layer", OPEN, "needle.recall",
     DOC(KV, GATED,
         ",\"recipes\":{\"objects\":[{\"object\":\"state\",\"layers\":[{\"layer\":0},{"
         "\"layer\":1},{\"layer\":2},{\"layer\":4}]},{\"object\":\"k\",\"layers\":[{"
         "\"layer\":3},{\"layer\":7}]}]}" ANALYSES(MOSTLY "," APART_AND(
             "needle.recall", "high", "0.2",
             CACHE("layer.0", "0.9", E(0.7, 0.6, 0.8)) CACHE("swap.all", "1", V(0.8)),
             BEST("layer.0", "0.2", "0.9", E(0.7, 0.6, 0.8), "1",
                  E(0.875, 0.75, 0.99)))))},
    {"one_layer", UNMEASURED, "analyse.suites", DOC(KV, KV, "")},
    {"one_layer", UNMEASURED, "nothing is left over",
     DOC(KV, KV,
         ANALYSES(APART_AND("prose.kl", "low", "0", LAYERS("0", V(0)),
                            BEST("layer.3", "0", "0", V(0), "0", "null"))))},

    {"capture_point", YES, "before norm and position",
     DOC(LATENTS, LATENTS, RECALL("engine", E(0.25, 0.1, 0.4), E(-0.7, -0.8, -0.6)))},
    {"capture_point", NO, "",
     DOC(LATENTS, LATENTS, RECALL("engine", "1", E(0.02, 0.01, 0.03)))},
    /* both fail */
    {"capture_point", NO, "",
     DOC(LATENTS, KV,
         ABLATED("0.02", "1", E(0.5, 0.4, 0.6), "engine", CELLS("1", "1", "0.1"),
                 CELLS("1", "0", E(-0.4, -0.5, -0.3))))},
    {"capture_point", OPEN, "",
     DOC(LATENTS, LATENTS, RECALL("engine", "1", E(-0.02, -0.05, 0.03)))},
    {"capture_point", UNMEASURED, "longer than the calibration",
     DOC(LATENTS, LATENTS, RECALL("no_token", "1", "0"))},
    /* what would be compared is the translator itself */
    {"capture_point", UNMEASURED, "fitted at capture point 3 itself",
     DOC(LATENTS, LATENTS,
         ",\"recipes\":{\"latents\":3}" RECALL("engine", "1", E(0, -0.01, 0.01)))},
    {"capture_point", NEVER, "latents", DOC(KV, GATED, "")},

    {"index_keys", YES, "on the target’s own cache 99.0",
     DOC(GATED, INDEXED, CHOSEN(E(0.98, 0.96, 0.99)))},
    {"index_keys", NO, "of the native choice is chosen 70.0",
     DOC(GATED, INDEXED, CHOSEN(E(0.5, 0.4, 0.6)))},
    {"index_keys", OPEN, "", DOC(GATED, INDEXED, CHOSEN(E(0.96, 0.92, 0.99)))},
    /* as good as a native choice that misses half */
    {"index_keys", YES, "on the target’s own cache 50.0",
     DOC(GATED, INDEXED, CHOSEN_OF("0.5", E(0.55, 0.5, 0.6)))},
    {"index_keys", UNMEASURED, "analyse.suites", DOC(GATED, INDEXED, "")},
    {"index_keys", UNMEASURED, "longer", DOC(GATED, INDEXED, CHOSEN("null"))},
    /* where all is looked at the needle is, whatever a prediction were worth */
    {"index_keys", UNMEASURED, "fit.indexers: predicted",
     DOC(GATED, INDEXED, ",\"recipes\":{\"indexers\":\"dense\"}" CHOSEN("1"))},
    {"index_keys", NEVER, "no tokens", DOC(KV, KV, CHOSEN("1"))},

    {"segments", YES, "less segment by segment −40.0",
     DOC(KV, KV, TURNS(E(-0.4, -0.5, -0.3), E(-0.02, -0.05, 0.01)))},
    {"segments", NO, "", DOC(KV, KV, TURNS(E(0.1, 0.05, 0.2), E(-0.02, -0.05, 0.01)))},
    /* both collapse */
    {"segments", NO, "less both models’ own reading −50.0",
     DOC(KV, KV, TURNS(E(-0.4, -0.5, -0.3), E(-0.5, -0.6, -0.4)))},
    {"segments", OPEN, "", DOC(KV, KV, TURNS(E(-0.1, -0.3, 0.1), "0"))},
    /* F1 sees nothing of it */
    {"segments", YES, "gold in answer segment by segment 70.0",
     DOC(KV, KV, GOLDEN_TURNS(E(-0.1, -0.15, -0.05), E(-0.03, -0.06, -0.01)))},
    {"segments", UNMEASURED, "a section alternate", DOC(KV, KV, "")},

    {"distillation", YES, "closed form 0.02",
     DOC(KV, KV, TRAINED(E(-0.01, -0.02, -0.005)))},
    {"distillation", NO, "", DOC(KV, KV, TRAINED(E(0.01, 0.005, 0.02)))},
    {"distillation", OPEN, "", DOC(KV, KV, TRAINED(E(-0.01, -0.02, 0.005)))},
    {"distillation", UNMEASURED, "a section distill", DOC(KV, KV, "")},
    {"distillation", UNMEASURED, "plain text",
     DOC(KV, KV, ",\"training\":{\"steps\":400}")},

    {"neither_half", YES, "only.states",
     DOC(LATENTS, HYBRID,
         HALVES("0", E(-0.9, -1, -0.8), "0.05", E(-0.85, -0.9, -0.8)))},
    {"neither_half", NO, "",
     DOC(LATENTS, HYBRID,
         HALVES("0.85", E(-0.05, -0.1, -0.01), "0", E(-0.9, -1, -0.8)))},
    {"neither_half", OPEN, "",
     DOC(LATENTS, HYBRID,
         HALVES(E(0.4, 0.2, 0.6), E(-0.5, -0.7, -0.3), "0", E(-0.9, -1, -0.8)))},
    {"neither_half", UNMEASURED, "analyse.suites", DOC(LATENTS, HYBRID, "")},
    {"neither_half", NEVER, "one kind", DOC(HYBRID, LATENTS, "")},

    {"layer_zero", YES, "100.0",
     DOC(LATENTS, KV, ",\"recipes\":{\"identity\":{\"top1\":1,\"rows\":640}}")},
    {"layer_zero", YES, "99.0",
     DOC(LATENTS, KV,
         INVERSION(SERIES("source", "0", V(0.9)) "," SERIES("source", "0", "0.99")))},
    /* at least the bar is the bar too */
    {"layer_zero", YES, "97.0",
     DOC(LATENTS, KV, INVERSION(SERIES("source", "0", E(0.97, 0.95, 0.99))))},
    {"layer_zero", NO, "90.0",
     DOC(LATENTS, KV,
         INVERSION(SERIES("source", "0", "0.9") "," SERIES("target", "0", "1")))},
    {"layer_zero", OPEN, "",
     DOC(LATENTS, KV, INVERSION(SERIES("source", "0", E(0.95, 0.9, 0.99))))},
    {"layer_zero", UNMEASURED, "a section analyse", DOC(LATENTS, KV, "")},
    {"layer_zero", NEVER, "first layer",
     DOC(HYBRID, KV,
         INVERSION(SERIES("source", "3", "1") "," SERIES("target", "0", "1")))},

    {"hidden_loss", YES, "ablated",
     DOC(KV, KV, RECALL("k1", "0.5", E(-0.48, -0.6, -0.3)))},
    {"hidden_loss", NO, "", DOC(KV, KV, RECALL("k1", "0.95", E(-0.03, -0.1, 0.05)))},
    {"hidden_loss", OPEN, "", DOC(KV, KV, RECALL("k1", "0.7", E(-0.28, -0.4, -0.1)))},
    /* what decides is shown, not what looks worse and is open */
    {"hidden_loss", YES, "second; KL 0.03",
     DOC(KV, KV,
         ABLATED("0.02", "1", "1", "k1", CELLS("0.03", "0.4", "0.4"),
                 CELLS("0.01", E(-0.6, -1, 0),
                       "0") "]},{\"name\":\"depth\","
                            "\"title\":\"second\",\"cells\":[" CELLS(
                                "0.03", "0.5",
                                "0.5") "],\"versus\":[" CELLS("0.01",
                                                              E(-0.5, -0.6, -0.4),
                                                              "0")))},
    /* KL is judged by the interval of its difference, here from 0.02: what lies on both
     * sides of twice that leaves it open, whichever side its value is on */
    {"hidden_loss", OPEN, "difference 0.01",
     DOC(KV, KV,
         ABLATED("0.02", "1", "1", "k1", CELLS("0.03", "0.4", "0.4"),
                 CELLS(E(0.01, -0.01, 0.05), E(-0.6, -0.7, -0.5), "0")))},
    {"hidden_loss", OPEN, "difference 0.03",
     DOC(KV, KV,
         ABLATED("0.02", "1", "1", "k1", CELLS("0.05", "0.4", "0.4"),
                 CELLS(E(0.03, 0.01, 0.06), E(-0.6, -0.7, -0.5), "0")))},
    {"hidden_loss", YES, "difference 0.01",
     DOC(KV, KV,
         ABLATED("0.02", "1", "1", "k1", CELLS("0.03", "0.4", "0.4"),
                 CELLS(E(0.01, 0.005, 0.015), E(-0.6, -0.7, -0.5), "0")))},
    /* lost, and KL says so */
    {"hidden_loss", NO, "no ablation",
     DOC(KV, KV,
         ABLATED("0.02", "1", "1", "k1", CELLS("0.3", "0.1", "0.1"),
                 CELLS("0.28", E(-0.9, -1, -0.8), "0")))},
    {"hidden_loss", UNMEASURED, "evaluate.ablation_suites", DOC(KV, KV, "")},
};

static kvm_arena keep;

static int setup(void **state)
{
    (void)state;
    keep = check_arena((size_t)1 << 28);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kvm_arena_free(&keep);
    return 0;
}

static kvm_finding_row *judge(const char *text, ptrdiff_t *n)
{
    kvm_err err = {0};
    kvm_jat doc;
    kvm_document d;
    kvm_finding_row *rows;
    check_ok(kvm_json_parse(&doc, &keep, kvm_str_of(text), KVM_STR("made up"), &err),
             &err);
    check_ok(kvm_document_read(&d, &keep, doc, &err), &err);
    check_ok(kvm_findings(&rows, n, &keep, &d, &err), &err);
    return rows;
}

static void every_document_has_its_verdict(void **state)
{
    (void)state;
    static const kvm_finding_verdict want[] = {
        KVM_FINDING_REPRODUCED, KVM_FINDING_NOT_REPRODUCED, KVM_FINDING_UNDECIDED,
        KVM_FINDING_NOT_MEASURED, KVM_FINDING_INAPPLICABLE};
    for (size_t i = 0; i < COUNT(cases); i++) {
        ptrdiff_t n, k = 0;
        const kvm_finding_row *rows = judge(cases[i].doc, &n);
        while (k < n && !kvm_str_eq(rows[k].key, kvm_str_of(cases[i].key))) k++;
        if (k == n) fail_msg("no finding %s", cases[i].key);
        if (rows[k].verdict != want[cases[i].verdict])
            fail_msg("case %zu, %s: verdict %d, expected %d: %.*s", i, cases[i].key,
                     (int)rows[k].verdict, (int)want[cases[i].verdict],
                     KVM_STR_ARG(rows[k].text));
        check_contains(rows[k].text.at, cases[i].says);
    }
}

static void count_each(json_t *list, const char *key)
{
    json_t *one;
    size_t i;
    json_array_foreach(list, i, one) json_object_set_new(one, key, json_integer(5));
}

static void halve_each(json_t *list)
{
    json_t *one, *best;
    size_t i;
    json_array_foreach(list, i, one) if ((best = json_object_get(one, "best_layer")))
        json_object_set_new(best, "items", json_integer(5));
}

/* Of five items nothing is decided, however clear their figures look. */
static void few_items_decide_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (cases[i].verdict != YES) continue;
        json_t *doc = json_loads(cases[i].doc, 0, NULL);
        count_each(json_object_get(json_object_get(doc, "ablations"), "columns"),
                   "items");
        count_each(json_object_get(json_object_get(doc, "analyses"), "suites"),
                   "items");
        halve_each(json_object_get(json_object_get(doc, "analyses"), "suites"));
        count_each(json_object_get(doc, "suites"), "items");
        json_object_set_new(json_object_get(doc, "alternation"), "dialogues",
                            json_integer(5));
        json_object_set_new(json_object_get(doc, "inversion"), "rows", json_integer(5));
        json_object_set_new(
            json_object_get(json_object_get(doc, "recipes"), "identity"), "rows",
            json_integer(5));
        char *text = json_dumps(doc, 0);
        ptrdiff_t n, k = 0;
        const kvm_finding_row *rows = judge(text, &n);
        while (k < n && !kvm_str_eq(rows[k].key, kvm_str_of(cases[i].key))) k++;
        if (rows[k].verdict != KVM_FINDING_UNDECIDED)
            fail_msg("case %zu, %s: verdict %d of five items: %.*s", i, cases[i].key,
                     (int)rows[k].verdict, KVM_STR_ARG(rows[k].text));
        check_contains(rows[k].text.at, "not decided: 5 ");
        check_contains(rows[k].criterion.at, " Needs at least ");
        free(text);
        json_decref(doc);
    }
}

/* a row without made-up documents of its own is not a tested row */
static void every_row_has_its_documents(void **state)
{
    (void)state;
    ptrdiff_t n;
    const kvm_finding_row *rows = judge(DOC(KV, KV, ""), &n);
    for (ptrdiff_t k = 0; k < n; k++)
        for (int v = YES; v <= UNMEASURED; v++) {
            bool there = false;
            for (size_t i = 0; i < COUNT(cases); i++)
                there |= cases[i].verdict == v &&
                         kvm_str_eq(rows[k].key, kvm_str_of(cases[i].key));
            if (!there) fail_msg("%s has no case %d", rows[k].key.at, v);
        }
}

/* the bars of the table stand in the criterion, and nothing else is compared with */
static void criteria_name_their_bars(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        double bar, other;
        const char *criterion;
    } table[] = {
#define X(id, NAME, key, statement, source, bar, other, items, unit, criterion)        \
    {key, bar, other, criterion},
#include "reports/findings.def"
#undef X
    };
    ptrdiff_t n;
    const kvm_finding_row *rows = judge(DOC(KV, KV, ""), &n);
    assert_int_equal(n, COUNT(table));
    for (ptrdiff_t k = 0; k < n; k++) {
        char bar[32];
        const char *first = strchr(table[k].criterion, '#');
        check_str(rows[k].key, table[k].key);
        assert_int_equal(kvm_str_find(rows[k].criterion, KVM_STR("#")), -1);
        assert_true(rows[k].source.len > 0 && rows[k].statement.len > 0);
        assert_int_equal(first != NULL, table[k].bar > 0);
        if (!first) continue;
        snprintf(bar, sizeof bar, " %g", table[k].bar);
        check_contains(rows[k].criterion.at, bar);
        assert_int_equal(strchr(first + 1, '#') != NULL, table[k].other > 0);
        snprintf(bar, sizeof bar, " %g", table[k].other);
        if (table[k].other > 0) check_contains(rows[k].criterion.at, bar);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_document_has_its_verdict),
        cmocka_unit_test(few_items_decide_nothing),
        cmocka_unit_test(every_row_has_its_documents),
        cmocka_unit_test(criteria_name_their_bars),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
