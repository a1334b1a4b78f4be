/* blas: see blas.h. cuBLASLt thinks in columns: its A is W as [K, N] transposed, its B our rows as
 * [K, M], its result [N, M]. */
#include "kernels/cuda/blas.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

/* What is used of the library. The _internal ones are what its header's inline functions call. */
#define FUNCTIONS(X) \
    X(cublasLtCreate) \
    X(cublasLtDestroy) \
    X(cublasLtGetStatusString) \
    X(cublasLtMatmul) \
    X(cublasLtMatmulAlgoGetHeuristic) \
    X(cublasLtMatmulDescInit_internal) \
    X(cublasLtMatmulDescSetAttribute) \
    X(cublasLtMatmulPreferenceInit_internal) \
    X(cublasLtMatmulPreferenceSetAttribute) \
    X(cublasLtMatrixLayoutInit_internal)

/* Filled once, before any handle is made. */
static struct {
#define X(name) __typeof__(name) *name;
    FUNCTIONS(X)
#undef X
} lt;

enum { PLANS = 256, PLAN_ROWS = 128 }; /* prefill chunks of 8192 rows and two shapes: 128 plans */

typedef struct plan {
    int32_t M, N, K; /* M in units of PLAN_ROWS; 0: empty */
    int64_t lda, ldo;
    bool bias, sum;
    cublasLtMatmulAlgo_t algo;
} plan;

struct cuda_blas {
    cublasLtHandle_t handle;
    plan plans[PLANS]; /* by hash; a newcomer displaces, and what it displaced is found again */
};

/* Descriptions of one product, without memory of their own. */
typedef struct product {
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t w, a, out;
} product;

/* --- the library ------------------------------------------------------------------------------ */

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define SONAME "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

td_status td_cuda_blas_load(const char *const *names, int n, td_error *err)
{
    void *library = NULL;

    for (int i = 0; i < n && library == NULL; i++) {
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (library == NULL && i == 0) /* the reason of the first: the others are guesses */
            td_fail(err, TD_IO,
                    "cuda: the library of large products cannot be loaded (%s). Install cuBLAS %d "
                    "(libcublas of the CUDA toolkit, or Python's nvidia-cublas), or name the "
                    "folder of " SONAME " in LD_LIBRARY_PATH; --backend cpu needs none",
                    dlerror(), CUBLAS_VER_MAJOR);
    }
    if (library == NULL)
        return TD_IO;
#define X(name) \
    *(void **)&lt.name = dlsym(library, #name); \
    if (lt.name == NULL) { \
        dlclose(library); \
        return td_fail(err, TD_IO, "cuda: " SONAME " has no " #name ": it is not cuBLAS %d", \
                       CUBLAS_VER_MAJOR); \
    }
    FUNCTIONS(X)
#undef X
    return TD_OK; /* it stays for as long as the process: kernels may run to the end */
}

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static bool loaded;

/* By the loader's own rules, then where the toolkit of this build had it, then its usual place. */
td_status td_cuda_blas_ready(td_error *err)
{
    static const char *const names[] = {SONAME, TANDEM_CUBLASLT_DIR "/" SONAME,
                                        "/usr/local/cuda/lib64/" SONAME};
    td_status st = TD_OK;

    pthread_mutex_lock(&loading);
    if (!loaded)
        st = td_cuda_blas_load(names, sizeof names / sizeof names[0], err);
    loaded = st == TD_OK;
    pthread_mutex_unlock(&loading);
    return st;
}

/* --- products --------------------------------------------------------------------------------- */

static td_status blas_status(td_error *err, cublasStatus_t e, const char *step, const char *what)
{
    td_status st = TD_DEVICE;

    if (e == CUBLAS_STATUS_SUCCESS)
        return TD_OK;
    if (e == CUBLAS_STATUS_ALLOC_FAILED)
        st = TD_NOMEM;
    else if (e == CUBLAS_STATUS_NOT_SUPPORTED)
        st = TD_INVALID;
    return td_fail(err, st, "%s: cublasLt: %s: %s", step, what, lt.cublasLtGetStatusString(e));
}

static td_status blas_of(td_dev *dev, const char *step, cuda_blas **out, td_error *err)
{
    td_status st;

    if (dev->blas == NULL) {
        cuda_blas *b = calloc(1, sizeof *b);

        if (b == NULL)
            return td_fail(err, TD_NOMEM, "%s: no memory for cublasLt's plans", step);
        st = blas_status(err, lt.cublasLtCreate(&b->handle), step, "making a handle");
        if (st != TD_OK) {
            free(b);
            return st;
        }
        dev->blas = b;
    }
    *out = dev->blas;
    return TD_OK;
}

void td_cuda_blas_close(cuda_blas *b)
{
    if (b == NULL)
        return;
    (void)lt.cublasLtDestroy(b->handle);
    free(b);
}

static bool aligned(const void *p, int64_t ld)
{
    return (uintptr_t)p % 16 == 0 && ld % 8 == 0;
}

bool td_cuda_blas_takes(const cuda_blas_args *a)
{
    return aligned(a->a, a->lda) && aligned(a->w, 0) && aligned(a->out, a->ldo) &&
           aligned(a->bias, 0) && a->N % 8 == 0 && a->K % 8 == 0;
}

static cublasStatus_t describe(product *p, const cuda_blas_args *a, int32_t M)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cublasLtEpilogue_t epilogue =
        a->bias != NULL ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    const uint64_t K = (uint64_t)a->K, N = (uint64_t)a->N;
    cublasStatus_t e =
        lt.cublasLtMatmulDescInit_internal(&p->op, sizeof p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F);

    if (e == CUBLAS_STATUS_SUCCESS)
        e = lt.cublasLtMatmulDescSetAttribute(&p->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                              sizeof transposed);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = lt.cublasLtMatmulDescSetAttribute(&p->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                              sizeof epilogue);
    if (e == CUBLAS_STATUS_SUCCESS && a->bias != NULL)
        e = lt.cublasLtMatmulDescSetAttribute(&p->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &a->bias,
                                              sizeof a->bias);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = lt.cublasLtMatrixLayoutInit_internal(&p->w, sizeof p->w, CUDA_R_16BF, K, N,
                                                 td_cuda_pitch(a->K));
    if (e == CUBLAS_STATUS_SUCCESS)
        e = lt.cublasLtMatrixLayoutInit_internal(&p->a, sizeof p->a, CUDA_R_16BF, K, (uint64_t)M,
                                                 a->lda);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = lt.cublasLtMatrixLayoutInit_internal(
            &p->out, sizeof p->out, a->sum ? CUDA_R_32F : CUDA_R_16BF, N, (uint64_t)M, a->ldo);
    return e;
}

/* The library's own first choice among algorithms that need no workspace and no reduction. */
static td_status find_algo(cuda_blas *b, const cuda_blas_args *a, int32_t M, const char *step,
                           cublasLtMatmulAlgo_t *algo, td_error *err)
{
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE;
    const size_t workspace = 0;
    cublasLtMatmulPreferenceOpaque_t pref;
    cublasLtMatmulHeuristicResult_t best = {0};
    product p;
    int n = 0;
    cublasStatus_t e = describe(&p, a, M);

    if (e == CUBLAS_STATUS_SUCCESS)
        e = lt.cublasLtMatmulPreferenceInit_internal(&pref, sizeof pref);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = lt.cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                    &workspace, sizeof workspace);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = lt.cublasLtMatmulPreferenceSetAttribute(
            &pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions);
    if (e == CUBLAS_STATUS_SUCCESS)
        e = lt.cublasLtMatmulAlgoGetHeuristic(b->handle, &p.op, &p.w, &p.a, &p.out, &p.out, &pref,
                                              1, &best, &n);
    if (e == CUBLAS_STATUS_SUCCESS && n == 0)
        e = CUBLAS_STATUS_NOT_SUPPORTED;
    if (e == CUBLAS_STATUS_SUCCESS)
        *algo = best.algo;
    return blas_status(err, e, step, "choosing an algorithm");
}

static td_status plan_of(cuda_blas *b, const cuda_blas_args *a, const char *step, const plan **out,
                         td_error *err)
{
    plan want = {(a->M + PLAN_ROWS - 1) / PLAN_ROWS,
                 a->N,
                 a->K,
                 a->lda,
                 a->ldo,
                 a->bias != NULL,
                 a->sum,
                 {{0}}};
    uint32_t h = (uint32_t)want.M + (uint32_t)want.N * 0x9e3779b1u + (uint32_t)want.K * 0x85ebca6bu;
    plan *p = &b->plans[(h ^ h >> 15) % PLANS];
    td_status st;

    if (p->M != want.M || p->N != want.N || p->K != want.K || p->lda != want.lda ||
        p->ldo != want.ldo || p->bias != want.bias || p->sum != want.sum) {
        st = find_algo(b, a, want.M * PLAN_ROWS, step, &want.algo, err);
        if (st != TD_OK)
            return st;
        *p = want;
    }
    *out = p;
    return TD_OK;
}

td_status td_cuda_blas(td_stream *s, const cuda_blas_args *a, const char *step, td_error *err)
{
    const float one = 1.0f, zero = 0.0f;
    const plan *way;
    cuda_blas *b = NULL;
    product p;
    td_status st;

    if ((st = blas_of(s->dev, step, &b, err)) != TD_OK ||
        (st = plan_of(b, a, step, &way, err)) != TD_OK ||
        (st = blas_status(err, describe(&p, a, a->M), step, "describing it")) != TD_OK)
        return st;
    return blas_status(err,
                       lt.cublasLtMatmul(b->handle, &p.op, &one, a->w, &p.w, a->a, &p.a,
                                         a->sum ? &one : &zero, a->out, &p.out, a->out, &p.out,
                                         &way->algo, NULL, 0, s->handle),
                       step, "the product");
}
