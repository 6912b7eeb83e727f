/* replay.c - runs a fuzzer over its corpus without libFuzzer: replay CORPUS-DIR...
 * Each input is copied to a block of its exact size, so that reading past the end shows
 * under a sanitizer. Prints one TAP line. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) return -1;
    int result = -1;
    uint8_t *bytes = NULL;
    long size;
    if (fseek(f, 0, SEEK_END) == 0 && (size = ftell(f)) >= 0) {
        rewind(f);
        bytes = malloc((size_t)size + !size);
        if (bytes && fread(bytes, 1, (size_t)size, f) == (size_t)size)
            result = LLVMFuzzerTestOneInput(bytes, (size_t)size);
    }
    free(bytes);
    fclose(f);
    return result;
}

int main(int argc, char **argv)
{
    int inputs = 0, failed = 0;
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        const struct dirent *entry;
        while (dir && (entry = readdir(dir))) {
            char path[4096];
            if (entry->d_name[0] == '.') continue;
            snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name);
            inputs++;
            if (replay_file(path)) {
                printf("# %s: could not be replayed\n", path);
                failed++;
            }
        }
        if (dir) closedir(dir);
    }
    const int bad = failed > 0 || inputs == 0;
    printf("%sok 1 - %d inputs replayed\n", bad ? "not " : "", inputs);
    return bad;
}
