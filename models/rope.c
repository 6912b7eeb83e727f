#include "models/rope.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

/* Frequencies are formed in f32 as the reference does: at position 8,192 an ulp of one
 * of them is an angle of 5e-4. */
static void plain(float *f, ptrdiff_t width, double theta)
{
    for (ptrdiff_t j = 0; j < width / 2; j++)
        f[j] = 1.0f / powf((float)theta, (float)(2 * j) / (float)width);
}

static void llama3(float *f, const kvm_rope_config *r)
{
    const float longest = (float)((double)r->original / r->low);
    const float shortest = (float)((double)r->original / r->high);
    for (ptrdiff_t j = 0; j < r->width / 2; j++) {
        const float wave = (float)(2 * pi) / f[j], slow = f[j] / (float)r->factor;
        const float m =
            ((float)r->original / wave - (float)r->low) / (float)(r->high - r->low);
        if (wave > longest)
            f[j] = slow;
        else if (wave >= shortest)
            f[j] = (1 - m) * slow + m * f[j];
    }
}

/* entry of a head that turns `turns` times over the original context */
static double yarn_dim(const kvm_rope_config *r, double turns)
{
    return (double)r->width * log((double)r->original / (turns * 2 * pi)) /
           (2 * log(r->theta));
}

static void yarn(float *f, const kvm_rope_config *r)
{
    double lo = yarn_dim(r, r->beta_fast), hi = yarn_dim(r, r->beta_slow);
    if (r->truncate) lo = floor(lo), hi = ceil(hi);
    lo = fmax(lo, 0);
    hi = fmin(hi, (double)(r->width - 1));
    if (lo == hi) hi += 0.001;
    for (ptrdiff_t j = 0; j < r->width / 2; j++) {
        const float ramp = (float)fmin(fmax(((double)j - lo) / (hi - lo), 0), 1);
        f[j] = f[j] / (float)r->factor * ramp + f[j] * (1 - ramp);
    }
}

static double mscale(double factor, double m)
{
    return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1;
}

static double yarn_factor(const kvm_rope_config *r)
{
    if (r->attention_factor > 0) return r->attention_factor;
    if (r->mscale != 0 && r->mscale_all_dim != 0)
        return mscale(r->factor, r->mscale) / mscale(r->factor, r->mscale_all_dim);
    return mscale(r->factor, 1);
}

kvm_status kvm_rope_of(kvm_rope *out, kvm_arena *keep, const kvm_rope_config *r,
                       const float *divisors, kvm_err *err)
{
    float *f = kvm_new(keep, float, r->width / 2);
    if (!f) return kvm_nomem(err, keep);
    *out = (kvm_rope){
        .inv_freq = f, .width = r->width, .interleaved = r->interleaved, .factor = 1};
    plain(f, r->width, r->theta);
    for (ptrdiff_t j = 0; divisors && j < r->width / 2; j++) f[j] /= divisors[j];
    switch (r->kind) {
    case KVM_ROPE_DEFAULT:
        break;
    case KVM_ROPE_LINEAR:
        for (ptrdiff_t j = 0; j < r->width / 2; j++) f[j] /= (float)r->factor;
        break;
    case KVM_ROPE_LLAMA3:
        llama3(f, r);
        break;
    case KVM_ROPE_YARN:
        yarn(f, r);
        out->factor = (float)yarn_factor(r);
        break;
    }
    return KVM_OK;
}
