/* Runs .tflite models in one arena whose size is known before.
 *
 * Build the library with
 *     cargo rustc -p plimsoll-lite --release --features capi --crate-type staticlib
 * and link with target/release/libplimsoll_lite.a, -lpthread -ldl -lm.
 *
 * Functions that return int return 0 on success; 1: the file is damaged, 2: an operator cannot be run, 3: the arena is too small,
 * 4: a number, length or type that does not fit, 5: a value met while running is out of its range, 6: a bug of this library.
 * Where `text` is not null, a failure writes a sentence of at most `room` bytes there, ended by a zero. */
#ifndef PLIMSOLL_LITE_H
#define PLIMSOLL_LITE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct PlimsollModel PlimsollModel;

/* Reads a model from the bytes of a file, which must stay where they are until the model is freed. Null where it is refused. With
 * `pack_weights`, weights are copied into the order in which they are fastest. */
PlimsollModel *plimsoll_lite_load(const uint8_t *file, size_t bytes, int pack_weights, char *text, size_t room);
void plimsoll_lite_free(PlimsollModel *model);

/* How many bytes an arena must have at least. One arena serves one run at a time. */
size_t plimsoll_lite_arena_bytes(const PlimsollModel *model);

/* How many inputs (output = 0) or outputs (output = 1) there are, and how many values one of them has. */
size_t plimsoll_lite_count(const PlimsollModel *model, int output);
size_t plimsoll_lite_values(const PlimsollModel *model, int output, size_t index);

/* Inputs are written before every run; a run may use their bytes for something else. Floats are quantized if the model asks for it. */
int plimsoll_lite_set_input(const PlimsollModel *model, size_t index, const float *values, size_t count, uint8_t *arena,
                            size_t arena_bytes, char *text, size_t room);
/* Runs the model. Takes no memory but the arena. */
int plimsoll_lite_run(const PlimsollModel *model, uint8_t *arena, size_t arena_bytes, char *text, size_t room);
int plimsoll_lite_get_output(const PlimsollModel *model, size_t index, float *values, size_t count, uint8_t *arena,
                             size_t arena_bytes, char *text, size_t room);

#ifdef __cplusplus
}
#endif

#endif
