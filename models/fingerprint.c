/* fingerprint.c - who a model is: its config, its tokenizer and every byte of its
 * weights.
 *
 * The weights hash of one file is the file's SHA-256 (what sha256sum prints); of
 * several, SHA-256 over those digests, one a line, in order of the file names. Hashing
 * takes a second per 0.5-2 GB, so the digest of a large file is remembered under
 * $XDG_CACHE_HOME/kvmill (default ~/.cache/kvmill) by device, inode, size and both
 * times: a file that changes gets another ctime. A file changed within the last seconds
 * is not remembered, as a second change could keep its ctime. That all numbers which a
 * config reads of a file are finite is remembered beside its digest, so that a plan
 * reads large weights once. Bytes and state are those of the file that was mapped: its
 * path may name another one a moment later. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "models/model_internal.h"

enum { LARGE = 64 << 20, PIECE = 8 << 20, SETTLED_SECONDS = 10 };

kvm_str kvm_model_memos(kvm_arena *keep)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && *cache == '/') return kvm_str_fmt(keep, "%s/kvmill/sha256", cache);
    if (home && *home == '/') return kvm_str_fmt(keep, "%s/.cache/kvmill/sha256", home);
    return (kvm_str){0};
}

/* where the digest of a file in this state is remembered; at NULL: nowhere */
static kvm_str memo_path(const struct stat *st, kvm_arena *keep)
{
    char key[65];
    const kvm_str dir = kvm_model_memos(keep);
    const kvm_str state = kvm_str_fmt(
        keep, "%lld %lld %lld %lld.%09ld %lld.%09ld", (long long)st->st_dev,
        (long long)st->st_ino, (long long)st->st_size, (long long)st->st_mtim.tv_sec,
        st->st_mtim.tv_nsec, (long long)st->st_ctim.tv_sec, st->st_ctim.tv_nsec);
    if (!dir.at || !state.at || kvm_sha_of(state, key, NULL)) return (kvm_str){0};
    return kvm_path_join(keep, dir, kvm_str_of(key));
}

static bool recall(kvm_str memo, char hex[65], kvm_arena scratch)
{
    kvm_str text;
    if (!memo.at || !kvm_path_exists(memo) ||
        kvm_file_read(&text, &scratch, memo, 4096, NULL))
        return false;
    text = kvm_str_trim(text);
    for (ptrdiff_t i = 0; i < text.len; i++)
        if (!((text.at[i] >= '0' && text.at[i] <= '9') ||
              (text.at[i] >= 'a' && text.at[i] <= 'f')))
            return false;
    if (text.len != 64) return false;
    memcpy(hex, text.at, 64);
    hex[64] = 0;
    return true;
}

static bool settled(const struct stat *st)
{
    return kvm_wall() - (double)st->st_ctim.tv_sec > SETTLED_SECONDS;
}

/* best effort: a home that cannot be written costs time only */
static void remember(kvm_str memo, const char *text, kvm_arena scratch)
{
    kvm_err err = {0};
    ptrdiff_t slash = memo.len;
    while (slash > 0 && memo.at[slash - 1] != '/') slash--;
    const kvm_str dir = kvm_str_copy(&scratch, kvm_str_slice(memo, 0, slash - 1));
    if (!dir.at || kvm_dir_make(dir, &err) ||
        kvm_file_publish(memo, kvm_str_of(text), scratch, &err))
        kvm_log(KVM_LOG_DEBUG, "models.memo", "error=\"%s\"", err.msg);
}

/* in pieces, each of which leaves memory where the whole may be larger than that */
static kvm_status hash_bytes(kvm_str bytes, bool leave, char hex[65], kvm_err *err)
{
    if (!leave) return kvm_sha_of(bytes, hex, err);
    kvm_sha *h;
    kvm_status s = KVM_OK;
    TRY(kvm_sha_begin(&h, err));
    for (ptrdiff_t at = 0; !s && at < bytes.len; at += PIECE) {
        const ptrdiff_t left = bytes.len - at;
        const size_t n = (size_t)(left < PIECE ? left : PIECE);
        s = kvm_sha_add(h, bytes.at + at, n, err);
        kvm_file_leave(bytes.at + at, n);
    }
    if (!s) return kvm_sha_end(h, hex, err);
    kvm_sha_drop(h);
    return s;
}

static kvm_status hash_file(const kvm_checkpoint *ck, ptrdiff_t i, bool leave,
                            char hex[65], kvm_arena scratch, kvm_err *err)
{
    const struct stat *st = kvm_checkpoint_state(ck, i);
    const kvm_str bytes = kvm_checkpoint_whole(ck, i);
    if (st->st_size < LARGE) return kvm_sha_of(bytes, hex, err);
    const kvm_str memo = memo_path(st, &scratch);
    if (recall(memo, hex, scratch)) return KVM_OK;
    kvm_log(KVM_LOG_INFO, "models.hash", "file=\"%s\" bytes=%td",
            kvm_checkpoint_file(ck, i).at, bytes.len);
    TRY(hash_bytes(bytes, leave, hex, err));
    if (memo.at && settled(st)) remember(memo, hex, scratch);
    return KVM_OK;
}

static kvm_status hash_weights(const kvm_checkpoint *ck, bool leave, char hex[65],
                               kvm_arena scratch, kvm_err *err)
{
    const ptrdiff_t files = kvm_checkpoint_files(ck);
    if (files == 1) return hash_file(ck, 0, leave, hex, scratch, err);
    kvm_sha *all;
    char line[66];
    TRY(kvm_sha_begin(&all, err));
    kvm_status s = KVM_OK;
    for (ptrdiff_t i = 0; !s && i < files; i++) {
        s = hash_file(ck, i, leave, line, scratch, err);
        line[64] = '\n';
        if (!s) s = kvm_sha_add(all, line, 65, err);
    }
    if (!s) return kvm_sha_end(all, hex, err);
    kvm_sha_drop(all);
    return s;
}

/* where it is remembered that what a config reads of a large file in this state is
 * finite; at NULL: nowhere */
static kvm_str finite_memo(const struct stat *st, const char *config_hash,
                           kvm_arena *keep)
{
    if (st->st_size < LARGE) return (kvm_str){0};
    const kvm_str memo = memo_path(st, keep);
    return memo.at ? kvm_str_fmt(keep, "%.*s.%s.finite", KVM_STR_ARG(memo), config_hash)
                   : memo;
}

kvm_status kvm_model__finite_memos(kvm_str **memos, bool *known,
                                   const kvm_checkpoint *ck, kvm_arena *keep,
                                   kvm_err *err)
{
    char hash[65];
    const ptrdiff_t n = kvm_checkpoint_files(ck);
    TRY(kvm_config_hash(kvm_checkpoint_config(ck), hash, *keep, err));
    if (!(*memos = kvm_new(keep, kvm_str, n))) return kvm_nomem(err, keep);
    *known = true;
    for (ptrdiff_t i = 0; i < n; i++) {
        const struct stat *st = kvm_checkpoint_state(ck, i);
        const kvm_str memo = finite_memo(st, hash, keep);
        *known = *known && memo.at && kvm_path_exists(memo);
        if (memo.at && settled(st)) (*memos)[i] = memo;
    }
    return KVM_OK;
}

void kvm_model__remember_finite(const kvm_str *memos, ptrdiff_t n, kvm_arena scratch)
{
    for (ptrdiff_t i = 0; i < n; i++)
        if (memos[i].at) remember(memos[i], "finite\n", scratch);
}

kvm_status kvm_model__fingerprint(kvm_model *m, const kvm_checkpoint *ck,
                                  kvm_arena scratch, kvm_err *err)
{
    TRY(kvm_config_hash(&m->config, m->config_hash, scratch, err));
    const bool leave = m->offload || kvm_model__whole(m, NULL) != KVM_OK;
    TRY(hash_weights(ck, leave, m->weights_hash, scratch, err));
    const kvm_str all = kvm_str_fmt(
        &scratch, "%s %s %s", m->config_hash,
        m->tokenizer ? kvm_tokenizer_hash(m->tokenizer) : "-", m->weights_hash);
    if (!all.at) return kvm_nomem(err, &scratch);
    return kvm_sha_of(all, m->fingerprint, err);
}
