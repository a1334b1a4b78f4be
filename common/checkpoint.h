/* checkpoint: the tensors of a model folder, found by role and checked before anyone reads one.
 *
 * Opening maps every safetensors file named by the index (or the single model.safetensors), checks
 * each header against its file's size and each tensor against config.json, and refuses the folder
 * whole if anything disagrees: with the file, the tensor and the reason. Nothing is copied; tensor
 * bytes are the mapping's, so the files must not be written to while open (see safetensors.h).
 * Tensors that no role asks for are ignored, and counted in a debug line. After open, all functions
 * may be called from any thread. */
#ifndef TANDEM_COMMON_CHECKPOINT_H
#define TANDEM_COMMON_CHECKPOINT_H

#include <stdint.h>

#include "common/model_config.h"
#include "common/status.h"

typedef enum td_dtype { TD_F32, TD_BF16, TD_U8 } td_dtype;

typedef struct td_tensor {
    const void *data; /* row-major, rightmost index contiguous; any alignment */
    td_dtype dtype;
    int32_t n_dims;
    int64_t dim[4];
    uint64_t bytes;
} td_tensor;

/* Roles. Shapes: D hidden, Hq = n_q_heads * d, Hk = n_kv_heads * d, E experts, I inner, V vocab. */
typedef enum td_weight {
    TD_W_EMBED,          /* [V, D]            bf16; layer is ignored for the first three */
    TD_W_FINAL_NORM,     /* [D]               bf16 */
    TD_W_UNEMBED,        /* [V, D]            bf16 */
    TD_W_ATTN_NORM,      /* [D]               bf16 */
    TD_W_Q,              /* [Hq, D]           bf16 */
    TD_W_Q_BIAS,         /* [Hq]              bf16 */
    TD_W_K,              /* [Hk, D]           bf16 */
    TD_W_K_BIAS,         /* [Hk]              bf16 */
    TD_W_V,              /* [Hk, D]           bf16 */
    TD_W_V_BIAS,         /* [Hk]              bf16 */
    TD_W_O,              /* [D, Hq]           bf16 */
    TD_W_O_BIAS,         /* [D]               bf16 */
    TD_W_SINKS,          /* [n_q_heads]       bf16 */
    TD_W_MLP_NORM,       /* [D]               bf16 */
    TD_W_ROUTER,         /* [E, D]            bf16 */
    TD_W_ROUTER_BIAS,    /* [E]               bf16 */
    TD_W_GATE_UP_BLOCKS, /* [E, 2I, D/32, 16] u8; rows 2j gate, 2j+1 up; low nibble first */
    TD_W_GATE_UP_SCALES, /* [E, 2I, D/32]     u8, E8M0 bias 127 */
    TD_W_GATE_UP_BIAS,   /* [E, 2I]           bf16 */
    TD_W_DOWN_BLOCKS,    /* [E, D, I/32, 16]  u8 */
    TD_W_DOWN_SCALES,    /* [E, D, I/32]      u8 */
    TD_W_DOWN_BIAS,      /* [E, D]            bf16 */
    TD_W_COUNT
} td_weight;

typedef struct td_checkpoint td_checkpoint;

/* Open dir for the model that cfg describes. *out is the caller's, to td_checkpoint_close().
 * TD_NOTFOUND: a file that is not there; TD_IO: it cannot be read; TD_INVALID, as above; TD_NOMEM.
 */
TD_MUST_CHECK td_status td_checkpoint_open(const char *dir, const td_model_config *cfg,
                                           td_checkpoint **out, td_error *err);

/* The same interface over random weights of cfg's shapes, a pure function of seed, with magnitudes
 * that keep activations of a deep model finite. Tensors are made at their first use. TD_NOMEM. */
TD_MUST_CHECK td_status td_checkpoint_random(const td_model_config *cfg, uint64_t seed,
                                             td_checkpoint **out, td_error *err);

/* The tensor with this role. *out views memory that lives until release or close. TD_NOMEM only for
 * random weights. */
TD_MUST_CHECK td_status td_checkpoint_get(td_checkpoint *c, td_weight role, int32_t layer,
                                          td_tensor *out, td_error *err);

/* Say that this tensor will not be read again soon: a mapping's pages are dropped, a random tensor
 * is freed (and made again, equal, if asked for). No view of it may be in use. */
void td_checkpoint_release(td_checkpoint *c, td_weight role, int32_t layer);

/* A 64-bit identity of the tensors: names, shapes, file sizes and 64 bytes from the middle of each,
 * so that a fine-tuned copy differs from its origin (or the config and the seed). The two layouts
 * of one model differ. */
uint64_t td_checkpoint_hash(const td_checkpoint *c);
uint64_t td_checkpoint_bytes(const td_checkpoint *c); /* sum of tensor bytes */
void td_checkpoint_close(td_checkpoint *c);           /* NULL is fine */

const char *td_weight_name(td_weight role); /* "gate_up_blocks", for messages */

#endif
