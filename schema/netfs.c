#include "schema/netfs.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

enum { FUSE_MAGIC = 0x65735546 };

const char *kvm_netfs_of_magic(unsigned long magic)
{
    static const struct {
        unsigned long magic;
        const char *name;
    } rows[] = {{0x6969, "NFS"},         {0x517B, "SMB"},        {0xFF534D42, "CIFS"},
                {0xFE534D42, "SMB"},     {0x0BD00BD0, "Lustre"}, {0x5346414F, "AFS"},
                {0x73757245, "Coda"},    {0x00C36400, "Ceph"},   {0x47504653, "GPFS"},
                {0x19830326, "BeeGFS"},  {0x7461636F, "OCFS2"},  {0x01161970, "GFS2"},
                {0x20030528, "OrangeFS"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].magic == (magic & 0xFFFFFFFF)) return rows[i].name;
    return NULL;
}

/* A line of mountinfo: id parent major:minor root point options … - type source … */
const char *kvm_netfs_of_mounts(kvm_str mountinfo, unsigned major_, unsigned minor_)
{
    static const char *const types[] = {"sshfs",  "glusterfs", "s3fs",
                                        "rclone", "davfs",     "cephfs",
                                        "mfs",    "juicefs",   "gcsfuse"};
    kvm_str line, rest = mountinfo;
    while (rest.len > 0) {
        kvm_str_cut(rest, '\n', &line, &rest);
        kvm_str id, parent, device, tail = line;
        char want[32];
        kvm_str_cut(tail, ' ', &id, &tail);
        kvm_str_cut(tail, ' ', &parent, &tail);
        kvm_str_cut(tail, ' ', &device, &tail);
        snprintf(want, sizeof want, "%u:%u", major_, minor_);
        if (!kvm_str_eq(device, kvm_str_of(want))) continue;
        const ptrdiff_t dash = kvm_str_find(line, KVM_STR(" - "));
        if (dash < 0) continue;
        kvm_str type, source;
        kvm_str_cut(kvm_str_slice(line, dash + 3, line.len), ' ', &type, &source);
        if (!kvm_str_starts(type, KVM_STR("fuse."))) return NULL;
        type = kvm_str_slice(type, 5, type.len);
        for (size_t i = 0; i < sizeof types / sizeof *types; i++)
            if (kvm_str_eq(type, kvm_str_of(types[i]))) return types[i];
        return NULL;
    }
    return NULL;
}

static const char *fuse_name(const char *path)
{
    struct stat st;
    FILE *f = fopen("/proc/self/mountinfo", "re");
    if (!f) return NULL;
    const char *name = NULL;
    char line[4096];
    if (stat(path, &st) == 0)
        while (!name && fgets(line, sizeof line, f))
            name = kvm_netfs_of_mounts(kvm_str_of(line), major(st.st_dev),
                                       minor(st.st_dev));
    fclose(f);
    return name;
}

const char *kvm_netfs_name(kvm_str path)
{
    char text[4096];
    struct statfs fs;
    if (path.len >= (ptrdiff_t)sizeof text) return NULL;
    snprintf(text, sizeof text, "%.*s", KVM_STR_ARG(path));
    if (statfs(text, &fs)) return NULL;
    if ((unsigned long)fs.f_type == FUSE_MAGIC) return fuse_name(text);
    return kvm_netfs_of_magic((unsigned long)fs.f_type);
}
