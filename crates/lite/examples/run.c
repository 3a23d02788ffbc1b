/* Runs a .tflite model on an input of zeros and prints the first values of its first output: run MODEL */
#include <stdio.h>
#include <stdlib.h>

#include "plimsoll_lite.h"

static uint8_t *read_file(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    long length = ftell(file);
    rewind(file);
    uint8_t *data = length > 0 ? malloc((size_t)length) : NULL;
    *bytes = data ? fread(data, 1, (size_t)length, file) : 0;
    fclose(file);
    return data;
}

int main(int argc, char **argv) {
    char text[300] = "";
    size_t bytes = 0;
    uint8_t *file = argc == 2 ? read_file(argv[1], &bytes) : NULL;
    if (!file) {
        fprintf(stderr, "usage: run MODEL (a file that can be read)\n");
        return 2;
    }
    PlimsollModel *model = plimsoll_lite_load(file, bytes, 0, text, sizeof text);
    if (!model) {
        fprintf(stderr, "%s\n", text);
        return 1;
    }
    size_t arena_bytes = plimsoll_lite_arena_bytes(model);
    uint8_t *arena = malloc(arena_bytes);
    int failed = arena == NULL;
    for (size_t index = 0; !failed && index < plimsoll_lite_count(model, 0); index++) {
        size_t count = plimsoll_lite_values(model, 0, index);
        float *values = calloc(count, sizeof *values);
        failed = !values || plimsoll_lite_set_input(model, index, values, count, arena, arena_bytes, text, sizeof text);
        free(values);
    }
    failed = failed || plimsoll_lite_run(model, arena, arena_bytes, text, sizeof text);
    size_t count = plimsoll_lite_values(model, 1, 0);
    float *values = calloc(count, sizeof *values);
    failed = failed || !values || plimsoll_lite_get_output(model, 0, values, count, arena, arena_bytes, text, sizeof text);
    if (failed) {
        fprintf(stderr, "%s\n", text);
    } else {
        printf("arena %zu\n", arena_bytes);
        for (size_t index = 0; index < count && index < 10; index++) printf("%.6f\n", values[index]);
    }
    free(values);
    free(arena);
    plimsoll_lite_free(model);
    free(file);
    return failed ? 1 : 0;
}
