/* quire: a small KV cache for language models, and attention computed from it. C99, no CUDA types.
 *
 * Call order of a cache:
 *
 *   quire_layout_make -> quire_cache_sizes_get -> quire_cache_create(caller's memory)
 *   between steps: quire_seq_open, quire_seq_fork, quire_seq_freeze, quire_seq_export,
 *                  quire_seq_import, quire_seq_truncate, quire_seq_remove_span, quire_seq_close,
 *                  quire_prefix_find, quire_prefix_evict, quire_plan_apply, quire_extend
 *   prompt:        quire_prefill_begin; per layer quire_prefill_layer; quire_prefill_end; in one
 *                  round or several, on an empty sequence or later
 *   step:          quire_step_begin(batch); per layer quire_append, quire_attention; quire_step_end
 *                  (with drafts then quire_accept)
 *   any time:      quire_stats_get, quire_seq_info_get, quire_query, quire_gather, quire_explain
 *
 * Every other order returns QUIRE_BAD_STATE and changes nothing. Rules for all calls:
 *
 * - A call returns a status. It never throws, prints, aborts, waits, allocates or starts a thread.
 *   On failure nothing has changed and outputs are untouched, unless the call says otherwise.
 * - The caller owns all memory. Sizes are asked for in closed form, then given, once.
 * - Structs begin with struct_size (use the *_INIT macro) and flags (0). Fields are only appended.
 *   0 means "default" or "off" as the field says.
 * - Shapes are written outer to inner. Strides count elements; the head dim is contiguous.
 * - Outputs may not overlap inputs or the cache's memory.
 * - One writer per cache; quire_stats_get may be called from any thread at any time. Formats,
 *   layouts and descriptors are plain values, shared freely.
 * - Stream and capture: this version has the CPU backend, whose calls finish before they return.
 *   Calls marked [capture] will be legal during graph capture on a device.
 */
/* Fields and initialisers stand in columns. */
/* clang-format off */
#ifndef QUIRE_H
#define QUIRE_H

#include <stdint.h>

#include "quire/version.h"

#if defined(__GNUC__) && !defined(QUIRE_STATIC)
#define QUIRE_API __attribute__((visibility("default")))
#else
#define QUIRE_API
#endif
#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status and errors -------------------------------------------------------------------- */

typedef int32_t quire_status; /* one of quire_status_code; numbers are never reused */

enum quire_status_code {
  QUIRE_OK = 0,
  QUIRE_INVALID_ARGUMENT = 1, /* a field is outside its allowed range */
  QUIRE_UNSUPPORTED = 2,      /* legal, but not in this build or version */
  QUIRE_BAD_STATE = 3,        /* a call out of order */
  QUIRE_OUT_OF_PAGES = 4,     /* needed: pages the call needs; given: pages free for it */
  QUIRE_CAPACITY = 5,         /* more sequences or tokens than declared at create */
  QUIRE_MEMORY_TOO_SMALL = 6, /* needed, given: bytes */
  QUIRE_MISALIGNED = 7,       /* needed: alignment in bytes */
  QUIRE_ABI_MISMATCH = 8,     /* struct_size or flags of another version; given: the size or bits */
  QUIRE_BAD_VALUE = 9,        /* NaN, Inf or too large a number in K, V or q; given: element index */
  QUIRE_NOT_REVERSIBLE = 10,  /* would lose tokens that cannot come back */
  QUIRE_INTERNAL = 11         /* a defect of quire; please report it */
};

/* Why a call failed. Set `struct_size`, hand it in with the call's struct, read it on failure. */
typedef struct quire_error {
  uint32_t struct_size;
  quire_status status;
  uint64_t needed; /* the two numbers of the complaint, 0 where there are none */
  uint64_t given;
  char field[48]; /* the struct field or argument that is wrong */
  char text[208]; /* the allowed range, as a sentence */
} quire_error;
#define QUIRE_ERROR_INIT {sizeof(quire_error), 0, 0, 0, {0}, {0}}
/* The name of a status number, e.g. "out of pages"; never NULL. */
QUIRE_API const char* quire_status_text(quire_status status);

/* Version of the library that is running, e.g. 100 for 0.1.0, and its ABI number. */
QUIRE_API uint32_t quire_version(uint32_t* abi);

#define QUIRE_NONE 0xffffffffu /* "none" where 0 means a default */
#define QUIRE_ALL 0xffffffffu  /* "all" for tail_queries, layers and heads */

/* ---- Formats and layout ------------------------------------------------------------------- */

enum quire_dtype { QUIRE_F32 = 1, QUIRE_F16 = 2, QUIRE_BF16 = 3 };

enum quire_grid {
  QUIRE_GRID_F16 = 1,
  QUIRE_GRID_BF16 = 2,
  QUIRE_GRID_AFFINE = 3,            /* scale * code + zero; bits 8, 6, 4, 3, 2 */
  QUIRE_GRID_SYMMETRIC_UNIFORM = 4, /* scale * step * (code - middle); bits 6, 4, 3, 2 */
  QUIRE_GRID_SYMMETRIC_TABLE = 5    /* scale * Lloyd-Max level; bits 4, 3, 2 */
};

enum quire_transform {
  QUIRE_TRANSFORM_NONE = 0,
  QUIRE_TRANSFORM_HADAMARD = 1, /* signed block Hadamard; q and the output are rotated for you */
  QUIRE_TRANSFORM_OFFSET = 2    /* one vector per KV head is subtracted before coding */
};

/* How one vector of K or of V becomes bytes. */
typedef struct quire_vector_format {
  uint32_t grid;      /* quire_grid */
  uint32_t bits;      /* 16 for f16 and bf16 */
  uint32_t group;     /* elements that share a scale: 32, 64, or 0 for the whole head */
  uint32_t transform; /* quire_transform bits; equal in all tiers and the ring of a KV head */
} quire_vector_format;

typedef struct quire_format {
  quire_vector_format k;
  quire_vector_format v;
} quire_format;

#define QUIRE_MAX_TIERS 4 /* room in structs; this version takes 1 or 2 */

enum quire_layout_flag {
  QUIRE_LAYOUT_NO_SCORE = 1,    /* 4 bytes per token less; only for policies without scores */
  QUIRE_LAYOUT_NO_POSITION = 2, /* 4 bytes less; only for keep-all policies with one tier */
  QUIRE_LAYOUT_BIAS = 4         /* 2 bytes for a logit bias; reserved, refused for now */
};
typedef struct quire_layout_desc {
  uint32_t struct_size;
  uint32_t flags;           /* quire_layout_flag bits */
  uint32_t head_dim_k;      /* a multiple of 16 from 16 to 256 */
  uint32_t head_dim_v;      /* the same; may differ from head_dim_k */
  uint32_t tier_count;      /* 1, or 2 for policies with a low tier */
  uint32_t expected_tokens; /* 0: long; else pages are chosen small enough for short contexts */
  uint64_t page_bytes;      /* 0: search for the least waste; else a multiple of 64 */
  quire_format tier[QUIRE_MAX_TIERS]; /* high, low */
  quire_error* error;       /* or NULL */
} quire_layout_desc;
#define QUIRE_LAYOUT_DESC_INIT {sizeof(quire_layout_desc), 0, 0, 0, 1, 0, 0, {{{0, 0, 0, 0}, {0, 0, 0, 0}}}, 0}

/* Where the parts of a page of one tier lie; offsets in bytes from its start. */
typedef struct quire_tier_layout {
  uint32_t tokens;       /* per page, a multiple of 16 */
  uint32_t record_bytes; /* of a token: codes, scales, zeros, score, position */
  uint32_t k_plane[2];   /* code segments; the second one for 6 and 3 bits */
  uint32_t v_plane[2];
  uint32_t k_meta;       /* fp16 [numbers per token, tokens] */
  uint32_t v_meta;
  uint32_t score;        /* fp32 [tokens] */
  uint32_t position;     /* int32 [tokens] */
  uint64_t bytes;        /* end of the last segment */
  double waste;          /* share of a full page that holds no record */
} quire_tier_layout;

typedef struct quire_layout {
  uint32_t struct_size;
  uint32_t flags;
  uint32_t layout_version; /* 0: unstable until the CUDA attention lands */
  uint32_t tier_count;
  uint64_t page_bytes;
  quire_tier_layout tier[QUIRE_MAX_TIERS];
} quire_layout;
#define QUIRE_LAYOUT_INIT {sizeof(quire_layout), 0, 0, 0, 0, {{0, 0, {0, 0}, {0, 0}, 0, 0, 0, 0, 0, 0.0}}}
/* Answers where every byte of a page lies; the only source of sizes. Errors: the field of the description or of the
 * format that is wrong. Pure; [capture]. */
QUIRE_API quire_status quire_layout_make(const quire_layout_desc* desc, quire_layout* layout);

/* ---- Policies ------------------------------------------------------------------------------ */

enum quire_recipe_id {
  QUIRE_RECIPE_KEEP_ALL = 1,        /* every token in the high tier */
  QUIRE_RECIPE_DIFFKV_PAPER = 2,    /* arXiv 2412.03131 as published */
  QUIRE_RECIPE_DIFFKV_UPSTREAM = 3, /* as its authors' code runs it, defects repaired */
  QUIRE_RECIPE_STREAMING_LLM = 4,   /* arXiv 2309.17453: sinks and recent tokens */
  QUIRE_RECIPE_H2O = 5,             /* arXiv 2306.14048: running sums of attention */
  QUIRE_RECIPE_SNAPKV = 6,          /* arXiv 2404.14469: what the prompt's last queries see */
  QUIRE_RECIPE_QUIRE_UNIFORM = 7,   /* one rotated tier of few bits; no scores */
  QUIRE_RECIPE_QUIRE_BUDGET = 8,    /* three tiers by root mean square attention and a target */
  QUIRE_RECIPE_FOREIGN = 9          /* the engine's own plans */
};

enum quire_policy_kind { QUIRE_KEEP_ALL = 1, QUIRE_THRESHOLD = 2, QUIRE_EVICT = 3, QUIRE_FOREIGN = 4 };

enum quire_statistic { /* probabilities of the query heads of a group to one number per token */
  QUIRE_STATISTIC_NONE = 0,
  QUIRE_STATISTIC_MAX_SUM = 1,    /* prompt: maximum over heads of sums; decode: sum of maxima */
  QUIRE_STATISTIC_MAX_FIRST = 2,  /* sum of maxima in both */
  QUIRE_STATISTIC_MEAN_SUM = 3,   /* sum of means */
  QUIRE_STATISTIC_MEAN_SQUARE = 4 /* sum of means of squares */
};

enum quire_significance { QUIRE_MEAN = 1, QUIRE_ROOT_MEAN = 2, QUIRE_SUM = 3, QUIRE_POSITION = 4 };

enum quire_step_rule {
  QUIRE_STEP_APPEND = 1,   /* the token that leaves the ring enters the high tier */
  QUIRE_STEP_UPSTREAM = 2, /* DiffKV as coded */
  QUIRE_STEP_PAPER = 3,    /* DiffKV as published */
  QUIRE_STEP_CLASSIFY = 4, /* the leaving token is classified by the thresholds */
  QUIRE_STEP_EVICT = 5     /* the leaving token competes with the least significant one */
};

enum quire_policy_flag {
  QUIRE_POLICY_GROWS = 1,              /* evicting policies: the budget holds for the prompt only */
  QUIRE_POLICY_POSITION_THRESHOLDS = 2 /* prompt thresholds over the own position, not the length */
};
/* A policy of one sequence: QUIRE_POLICY_INIT, then quire_recipe_get, then fields of one's own. */
typedef struct quire_policy {
  uint32_t struct_size;
  uint32_t flags;          /* quire_policy_flag bits */
  uint32_t kind;           /* quire_policy_kind */
  uint32_t statistic;      /* quire_statistic */
  uint32_t significance;   /* quire_significance */
  uint32_t step_rule;      /* quire_step_rule; evicting policies: EVICT. With a byte budget or target a
                              threshold policy lets every token enter high and classifies all of
                              them every `cadence` steps */
  uint32_t sink_tokens;    /* first tokens that stay in the ring; 0 means 1, QUIRE_NONE none */
  uint32_t recent_window;  /* last tokens in the ring; 0 means 64, QUIRE_NONE none */
  uint32_t tail_queries;   /* last prompt queries that score the prompt; QUIRE_ALL: all */
  uint32_t min_queries;    /* a token seen by fewer queries stays high; 0: no probation. Needs a byte budget
                              or target, whose runs end probations */
  uint32_t cadence;        /* steps between two runs of the byte controller; 0 means 16 */
  uint32_t pool;           /* smoothing of prompt scores: 0 none, 1 average, 2 maximum */
  uint32_t pool_width;     /* odd, up to 63 */
  uint32_t budget_tokens;  /* per layer and KV head, ring included; 0: none */
  float alpha_high;        /* thresholds: below alpha / length not high, ... */
  float alpha_low;         /* ... dropped */
  uint64_t budget_bytes;   /* records of the sequence, ring included; 0: none */
  double byte_target;      /* pages, rings, tables as a share of fp16; 0: none */
} quire_policy;
#define QUIRE_POLICY_INIT {sizeof(quire_policy), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Thresholds of one layer and KV head, or of all with QUIRE_ALL; later entries win. */
typedef struct quire_threshold {
  uint32_t layer;
  uint32_t head;
  float alpha_high;
  float alpha_low;
} quire_threshold;

/* ---- The cache ------------------------------------------------------------------------------ */

enum quire_ring_format {
  QUIRE_RING_F16 = 1,  /* 0 means this */
  QUIRE_RING_BF16 = 2,
  QUIRE_RING_K8V8 = 3, /* affine, group = head */
  QUIRE_RING_HIGH = 4  /* the high tier's format */
};

/* Layers of equal shape and formats. */
typedef struct quire_group_desc {
  uint32_t struct_size;
  uint32_t flags;            /* 0 */
  uint32_t layers;
  uint32_t q_heads;          /* a multiple of kv_heads, at most 64 times as many */
  uint32_t kv_heads;
  uint32_t sink_tokens;      /* of the policies to come, at most; 0 means 1, QUIRE_NONE none */
  uint32_t recent_window;    /* the same; 0 means 64, QUIRE_NONE none */
  uint32_t max_draft;        /* ring slots for drafted rows */
  uint32_t ring_format;      /* quire_ring_format */
  uint32_t transform_seed;   /* signs of the Hadamard transform */
  quire_layout_desc layout;  /* its `error` is not used */
  int64_t page_stride;       /* bytes from page to page; 0 means page_bytes */
  uint64_t pages;            /* in this group's pool; 0 means quire_cache_desc.pages */
  const uint32_t* layer_ids; /* [layers] what calls name these layers; read at create. NULL: the numbers
                                behind those of the groups before */
  uint32_t sliding_window;   /* of the model's mask in these layers, what quire_rule says with 0: tokens
                                that no query will see any more are dropped, all others are high,
                                whatever the policy; 0: none */
  uint32_t reserved;
} quire_group_desc;
#define QUIRE_GROUP_DESC_INIT \
  {sizeof(quire_group_desc), 0, 0, 0, 0, 0, 0, 0, 0, 0, QUIRE_LAYOUT_DESC_INIT, 0, 0, 0, 0, 0}

enum quire_cache_flag {
  QUIRE_CACHE_SATURATE = 1, /* numbers beyond +-65504 in K and V saturate and are counted, instead of
                               being refused; NaN and Inf are always refused */
  QUIRE_CACHE_SHARING = 2   /* sequences may share pages (quire_seq_fork): page tables for every row at
                               its longest, and 4 bytes per page of the pool */
};
typedef struct quire_cache_desc {
  uint32_t struct_size;
  uint32_t flags;               /* quire_cache_flag bits */
  uint32_t max_sequences;       /* open at once */
  uint32_t max_batch;           /* sequences per step; 0 means max_sequences */
  uint32_t max_tokens;          /* per sequence, up to 16777215 */
  uint32_t threads;             /* largest quire_parallel.width; 0 means 1 */
  uint32_t max_splits;          /* largest fixed `splits` of attention; 0 means 1 */
  uint32_t group_count;         /* layer groups, 1 to 8 */
  const quire_group_desc* groups; /* [group_count]; a sequence has the same slot in all */
  uint64_t pages;               /* in the pool of every group that does not say otherwise */
  quire_error* error;
} quire_cache_desc;
#define QUIRE_CACHE_DESC_INIT {sizeof(quire_cache_desc), 0, 0, 0, 0, 0, 0, 1, 0, 0, 0}

/* Bytes of the five regions; each must be aligned to `alignment`. */
typedef struct quire_cache_sizes {
  uint32_t struct_size;
  uint32_t alignment;
  uint64_t host;      /* the cache object and its sequences */
  uint64_t pages;
  uint64_t rings;     /* blocks for max_sequences */
  uint64_t tables;    /* free list, page tables, head states */
  uint64_t workspace; /* scratch of one chain of calls; no content between calls of a step */
  uint64_t page_bytes;       /* of the first layer group */
  uint64_t ring_block_bytes; /* of the first layer group, per (sequence, layer, KV head) */
} quire_cache_sizes;
#define QUIRE_CACHE_SIZES_INIT {sizeof(quire_cache_sizes), 0, 0, 0, 0, 0, 0, 0, 0}

typedef struct quire_cache_memory {
  uint32_t struct_size;
  uint32_t flags;
  void* host;
  void* pages;
  void* rings;
  void* tables;
  void* workspace;
  uint64_t host_bytes;
  uint64_t pages_bytes;
  uint64_t rings_bytes;
  uint64_t tables_bytes;
  uint64_t workspace_bytes;
} quire_cache_memory;
#define QUIRE_CACHE_MEMORY_INIT {sizeof(quire_cache_memory), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

typedef struct quire_cache quire_cache;

/* A policy by name, and the formats and ring it was measured with: fills *policy (its struct_size must be set) and,
 * unless NULL, group->layout.tier, tier_count, flags, ring_format, sink_tokens, recent_window. Shapes, page size and
 * seed are left alone. */
QUIRE_API quire_status quire_recipe_get(uint32_t recipe, quire_policy* policy, quire_group_desc* group,
                                        quire_error* error);

/* Bytes that quire_cache_create needs; a closed form of the description. */
QUIRE_API quire_status quire_cache_sizes_get(const quire_cache_desc* desc, quire_cache_sizes* sizes);

/* Builds a cache in caller memory. Nothing is allocated, then or later. The description and its groups are copied.
 * Memory needs no zeroing. Writes the tables and `host`; not pages or rings. */
QUIRE_API quire_status quire_cache_create(const quire_cache_desc* desc, const quire_cache_memory* memory,
                                          quire_cache** cache);

/* Forgets the cache; its memory is the caller's again. NULL is allowed. */
QUIRE_API void quire_cache_destroy(quire_cache* cache);

/* ---- Sequences ------------------------------------------------------------------------------ */

typedef struct quire_seq_open_args {
  uint32_t struct_size;
  uint32_t flags;
  const quire_policy* policy;
  const quire_threshold* thresholds; /* overrides of the policy's alphas */
  uint64_t threshold_count;
  const float* k_offset; /* [layers, kv_heads, head_dim_k] for formats with QUIRE_TRANSFORM_OFFSET; */
  const float* v_offset; /* NULL: the mean of the prompt (zero without a prompt). With several groups
                            those of all that have the transform, one group behind the other */
  quire_error* error;
  const quire_policy* const* group_policies; /* [group_count] of the layer groups one by one; NULL, or
                                                an entry that is NULL: `policy` */
} quire_seq_open_args;
#define QUIRE_SEQ_OPEN_ARGS_INIT {sizeof(quire_seq_open_args), 0, 0, 0, 0, 0, 0, 0, 0}
/* Opens an empty sequence in the lowest free slot. Slots are stable until closed. In a cache of several layer groups
 * a byte target is a share of each group's fp16 bytes, and a byte budget has to be given group by group. */
QUIRE_API quire_status quire_seq_open(quire_cache* cache, const quire_seq_open_args* args, int32_t* slot);

typedef struct quire_seq_fork_args {
  uint32_t struct_size;
  uint32_t flags;
  int32_t slot;                      /* the parent: open, between steps, or frozen */
  uint32_t reserved;
  const quire_threshold* thresholds; /* of the child, over those of the parent */
  uint64_t threshold_count;
  quire_error* error;
} quire_seq_fork_args;
#define QUIRE_SEQ_FORK_ARGS_INIT {sizeof(quire_seq_fork_args), 0, 0, 0, 0, 0, 0}
/* Opens a second sequence with everything that the parent holds, in the lowest free slot. Needs QUIRE_CACHE_SHARING.
 * Full pages are shared: as long as two sequences hold a page, its codes, scores and tiers are frozen and its tokens
 * protected, beyond any budget (against bytes, each of n holders answers for 1/n of a page). The ring and the open
 * page of each tier are copied, which is what a fork takes from the pool (at most layers x kv_heads x tiers pages).
 * Cost: those bytes and 4 per shared page. Errors: BAD_STATE, CAPACITY (no free slot), OUT_OF_PAGES, UNSUPPORTED (a
 * cache without sharing), INVALID_ARGUMENT (thresholds). */
QUIRE_API quire_status quire_seq_fork(quire_cache* cache, const quire_seq_fork_args* args, int32_t* slot);

typedef struct quire_seq_freeze_args {
  uint32_t struct_size;
  uint32_t flags;
  int32_t slot;             /* open, between steps */
  uint32_t token_count;     /* as many as the sequence has */
  const int32_t* token_ids; /* [token_count] of the engine's vocabulary */
  uint64_t* identity;       /* [2] receives the prefix's name; or NULL */
  quire_error* error;
} quire_seq_freeze_args;
#define QUIRE_SEQ_FREEZE_ARGS_INIT {sizeof(quire_seq_freeze_args), 0, 0, 0, 0, 0, 0}
/* Makes a prefix handle of a sequence: from now on it is read, forked and closed, and nothing else. Needs
 * QUIRE_CACHE_SHARING and a sequence that holds one prompt and nothing that came later, planned by its own policy and
 * thresholds (not by a plan of the caller's, nor in a parent before a fork changed thresholds), so that what it keeps
 * depends on the prefix alone. quire_seq_fork opens a sequence from it; any number may read it at once, each with its own
 * ring and open pages. Its name is a 128-bit hash of token ids, formats, transform seed, policy with thresholds,
 * given offsets and layout version, not of page size, pool or slot: equal in every cache of these layers. It is a
 * name against accidents, not against who chooses token ids to collide. Errors: BAD_STATE, INVALID_ARGUMENT,
 * UNSUPPORTED (no sharing); nothing is changed. */
QUIRE_API quire_status quire_seq_freeze(quire_cache* cache, const quire_seq_freeze_args* args);

typedef struct quire_prefix_find_args {
  uint32_t struct_size;
  uint32_t flags;
  const int32_t* token_ids;          /* [token_count] of a prompt */
  uint32_t token_count;
  uint32_t reserved;
  const quire_seq_open_args* open;   /* with which the sequence would be opened; its `error` is not used */
  int32_t* slot;                     /* receives the handle, -1: none */
  uint32_t* tokens;                  /* receives how many tokens it holds; or NULL */
  quire_error* error;
} quire_prefix_find_args;
#define QUIRE_PREFIX_FIND_ARGS_INIT {sizeof(quire_prefix_find_args), 0, 0, 0, 0, 0, 0, 0, 0}
/* The handle with the longest prefix of a prompt, for a sequence of this policy. A use for eviction. Cost: the token
 * ids are hashed once, and handles compared once per length that occurs. */
QUIRE_API quire_status quire_prefix_find(quire_cache* cache, const quire_prefix_find_args* args);

/* Closes handles that no open sequence came from, the longest unused first (uses: freeze, fork, find), until `pages`
 * pages are free beside promises in every layer group, or none is left. Receives, unless NULL, the pages that became
 * free (of all groups) and the handles that went. */
QUIRE_API quire_status quire_prefix_evict(quire_cache* cache, uint64_t pages, uint64_t* freed,
                                          uint32_t* closed, quire_error* error);

/* Bytes of a sequence's frame: open, between steps, or frozen. Exact, in closed form of its tokens per tier. */
QUIRE_API quire_status quire_seq_export_bytes(const quire_cache* cache, int32_t slot, uint64_t* bytes,
                                              quire_error* error);

/* Writes a sequence as one frame: policy, thresholds, ring, offsets, records with scores and positions, and a
 * checksum. It does not depend on page size, pool size, ring slots for drafts or the pages' sharing. The sequence
 * stays open and unchanged. `frame` needs no alignment. Cost: the frame is written and read once. Errors: BAD_STATE,
 * MEMORY_TOO_SMALL. */
QUIRE_API quire_status quire_seq_export(const quire_cache* cache, int32_t slot, void* frame, uint64_t bytes,
                                        quire_error* error);

/* Opens a sequence from a frame, in the lowest free slot; it goes on bit for bit where the exported one stood. The
 * cache must have the same layers, heads, dims, formats, ring format and transform seed, and a ring at least as long;
 * bytes must be those that were exported. The checksum finds damage, not malice: a frame is trusted like the engine's
 * own memory, but for what could lead out of it. Errors: BAD_VALUE (damaged), ABI_MISMATCH (another version),
 * INVALID_ARGUMENT (another shape or format), CAPACITY, OUT_OF_PAGES; nothing is changed. */
QUIRE_API quire_status quire_seq_import(quire_cache* cache, const void* frame, uint64_t bytes, int32_t* slot,
                                        quire_error* error);

enum quire_truncate_flag {
  QUIRE_TRUNCATE_STRICT = 1 /* refuse with NOT_REVERSIBLE instead of losing anything */
};
typedef struct quire_seq_truncate_args {
  uint32_t struct_size;
  uint32_t flags;      /* quire_truncate_flag bits */
  int32_t slot;        /* open, between steps */
  uint32_t tokens;     /* length to go back to, up to the sequence's */
  uint32_t* lossy;     /* 0: the sequence is what it was at that length; 1: what had left the ring,
                          was demoted or dropped since stays so; or NULL */
  quire_error* error;
} quire_seq_truncate_args;
#define QUIRE_SEQ_TRUNCATE_ARGS_INIT {sizeof(quire_seq_truncate_args), 0, 0, 0, 0, 0}
/* Removes the tokens at positions `tokens` and above from ring and pages; brings nothing back. The ring fills up
 * again with what follows. Sums of scores shrink to the queries that are left, so that means stay. At 0 the sequence
 * is empty as after quire_seq_open and may take a prompt. In shared pages it copies those that it has to write into.
 * Cost: positions of the pages are read, scores written, and one record moved per hole. Errors: BAD_STATE,
 * INVALID_ARGUMENT (tokens), NOT_REVERSIBLE (with STRICT), OUT_OF_PAGES (copies of shared pages); nothing is changed. */
QUIRE_API quire_status quire_seq_truncate(quire_cache* cache, const quire_seq_truncate_args* args);

typedef struct quire_seq_remove_span_args {
  uint32_t struct_size;
  uint32_t flags;
  int32_t slot;      /* open, between steps */
  int32_t first;     /* positions [first, end): behind the sinks, ... */
  int32_t end;       /* ... before the recent window */
  uint32_t reserved;
  uint64_t* removed; /* tokens over all layers and heads that were still there; or NULL */
  quire_error* error;
} quire_seq_remove_span_args;
#define QUIRE_SEQ_REMOVE_SPAN_ARGS_INIT {sizeof(quire_seq_remove_span_args), 0, 0, 0, 0, 0, 0, 0}
/* Removes a span in the middle: a context shift without re-rotation. The other tokens keep their positions, so the
 * text has a hole there, and the sequence its length. Shared pages and cost as for quire_seq_truncate. Errors:
 * BAD_STATE, INVALID_ARGUMENT (a span that overlaps sinks or recent window), UNSUPPORTED (positions that are not
 * stored), OUT_OF_PAGES; nothing is changed. */
QUIRE_API quire_status quire_seq_remove_span(quire_cache* cache, const quire_seq_remove_span_args* args);

/* Closes a sequence in any state but "in step" and returns its pages. */
QUIRE_API quire_status quire_seq_close(quire_cache* cache, int32_t slot, quire_error* error);

/* ---- Arrays of the engine ------------------------------------------------------------------- */

/* [sequences, tokens, heads, head_dim] of the engine; strides in elements, all 0 means dense. */
typedef struct quire_rows {
  void* data;
  uint32_t dtype; /* quire_dtype */
  uint32_t reserved;
  int64_t sequence_stride;
  int64_t token_stride;
  int64_t head_stride;
} quire_rows;

/* What the model does to logits. Initialise with zeros; scale 0 means 1/sqrt(head_dim_k). */
typedef struct quire_rule {
  float scale;                /* up to 10 */
  float soft_cap;             /* c: c * tanh(logit / c); 0: off */
  int32_t sliding_window;     /* a query sees the last w positions, itself included; 0: off */
  uint32_t reserved;
  const float* alibi_slopes;  /* [q_heads], within +-1e6, or NULL */
  const float* sink_logits;   /* [q_heads], -inf or within +-1e30, or NULL; denominator only, not in the LSE */
} quire_rule;

/* The caller's threads. run() must call task(context, i) for every i in [0, tasks), in any order and on any threads,
 * and return when all are done. tasks is at most width. */
typedef struct quire_parallel {
  void (*run)(void* user, uint32_t tasks, void (*task)(void* context, uint32_t index), void* context);
  void* user;
  uint32_t width; /* at most quire_cache_desc.threads */
  uint32_t reserved;
} quire_parallel;

/* ---- Prompt --------------------------------------------------------------------------------- */

enum quire_prefill_flag {
  QUIRE_PREFILL_MORE = 1, /* a round of a prompt that is not its last: tokens are stored high, nothing is
                             scored or planned. No step takes the sequence until the last round is in */
  QUIRE_PREFILL_EXACT = 2, /* reserved, refused for now: hand the prompt in as one round */
  QUIRE_PREFILL_CHECK = 4  /* only says whether the round would fit (else OUT_OF_PAGES with the numbers) */
};
typedef struct quire_prefill_begin_args {
  uint32_t struct_size;
  uint32_t flags;       /* quire_prefill_flag bits */
  int32_t slot;         /* open; it may hold tokens, compressed as they are */
  uint32_t tokens;      /* of this round */
  quire_error* error;
} quire_prefill_begin_args;
#define QUIRE_PREFILL_BEGIN_ARGS_INIT {sizeof(quire_prefill_begin_args), 0, 0, 0, 0}
/* Begins a prompt, or the next round of one, behind the tokens that the sequence holds. Reserves pages by a closed
 * form: quire_pages_for on an empty sequence, else what tokens that enter and tokens that move down can need
 * (docs/lifecycle.md); ids are given out per layer. Shortage is reported here or never. The last round plans for all
 * tokens of the prompt and, within their tiers, for those before it. Errors: BAD_STATE, INVALID_ARGUMENT, CAPACITY,
 * OUT_OF_PAGES, UNSUPPORTED (EXACT). */
QUIRE_API quire_status quire_prefill_begin(quire_cache* cache, const quire_prefill_begin_args* args);

typedef struct quire_prefill_layer_args {
  uint32_t struct_size;
  uint32_t flags;
  int32_t slot;
  uint32_t layer;       /* in order from 0 */
  quire_rows k;         /* [1, tokens, kv_heads, head_dim_k], after RoPE */
  quire_rows v;         /* [1, tokens, kv_heads, head_dim_v] */
  quire_rows q;         /* [1, q_rows, q_heads, head_dim_k]: the last rows of the prompt's queries, of
                           all its rounds; not read in rounds with QUIRE_PREFILL_MORE */
  uint32_t q_rows;      /* from min(tail_queries, tokens of the prompt) to all, for policies with scores */
  uint32_t reserved;
  const float* lse;     /* [q_rows, q_heads] natural LSE of those rows over all keys, sink excluded; or NULL */
  quire_rule rule;
  const uint8_t* plan;  /* [kv_heads, length] tiers (0 high, 1 low, 254 drop; 255 leaves a token that is in
                           pages already) of all tokens with this round, or NULL: the policy's. None rises */
  uint8_t* plan_out;    /* [kv_heads, length] receives the plan (ring: 255), or NULL. A byte budget or
                           target cuts further from there, in this call and later ones; fed back
                           under the same policy, the plan leads to the same pages */
  const quire_parallel* parallel;
  quire_error* error;
} quire_prefill_layer_args;
#define QUIRE_PREFILL_LAYER_ARGS_INIT                                                          \
  {sizeof(quire_prefill_layer_args), 0, 0, 0, {0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0},          \
   {0, 0, 0, 0, 0, 0}, 0, 0, 0, {0, 0, 0, 0, 0, 0}, 0, 0, 0, 0}
/* Scores, plans and stores one layer of a prompt; the engine has computed its attention itself. The scores are those
 * of the unquantized K, and of what is stored for tokens before the round. Bytes moved: K and V once, K once more per
 * scored row tile. With a byte target, earlier layers may be demoted further. Source: arXiv 2412.03131 section 4 for
 * thresholds; docs/policies.md. */
QUIRE_API quire_status quire_prefill_layer(quire_cache* cache, const quire_prefill_layer_args* args);

/* Ends the round after the last layer; returns the rest of the reservation. */
QUIRE_API quire_status quire_prefill_end(quire_cache* cache, int32_t slot, quire_error* error);

/* Gives up a round. On an empty sequence, or before the first layer: the sequence is as before quire_prefill_begin.
 * Else it can only be closed, since what it held has moved. */
QUIRE_API quire_status quire_prefill_cancel(quire_cache* cache, int32_t slot, quire_error* error);

/* ---- Step ----------------------------------------------------------------------------------- */

/* A token changes its tier: the unit of a plan log. */
typedef struct quire_plan_move {
  uint32_t layer;
  uint32_t head;
  int32_t position;
  uint8_t to; /* 0 high, 1 low, 254 dropped */
  uint8_t pad[3];
} quire_plan_move;

typedef struct quire_step_begin_args {
  uint32_t struct_size;
  uint32_t flags;
  const int32_t* slots;        /* [batch] each at most once; -1 is padding */
  uint32_t batch;
  uint32_t rows;               /* per sequence: the new token and drafts, 1 to 16 and up to max_draft
                                  drafts; 0 means 1 */
  const quire_plan_move* plan; /* replay for batch 1: these moves instead of the policy's; sorted by
                                  (layer, head); must live until step_end; NULL: the policy plans */
  uint64_t plan_count;
  quire_plan_move* plan_out;   /* log for batch 1: receives the moves; NULL: no log */
  uint64_t plan_capacity;
  uint64_t* plan_out_count;    /* moves that the step makes, also when they do not fit */
  quire_error* error;
  const uint32_t* row_counts;  /* [batch] rows of each sequence that count, the others are padding;
                                  NULL: all */
  const uint32_t* draft_mask;  /* [batch, rows]: bit j of a row's word: it sees row j. A row sees itself
                                  and what its parent, an earlier row, sees; NULL: each row follows the
                                  one before */
  uint32_t on_shortage;        /* quire_on_shortage */
  uint32_t reserved;
  uint8_t* admitted;           /* [batch] receives 1 for sequences that take the step; or NULL */
} quire_step_begin_args;
#define QUIRE_STEP_BEGIN_ARGS_INIT {sizeof(quire_step_begin_args), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
enum quire_on_shortage {
  QUIRE_SHORTAGE_ALL = 0,   /* not enough pages for the batch: nothing happens */
  QUIRE_SHORTAGE_PREFIX = 1 /* sequences in the order of the batch, each if what is left is enough for
                               it; the others are padding in this step, and `admitted` says so.
                               OUT_OF_PAGES only when none fits */
};
/* Plans one new token per sequence for all layers and heads from the scores of the previous step and assigns pages,
 * all or nothing (see quire_on_shortage). After it no call of the step can run out of pages.
 *
 * * Drafts: row 0 is a token like any other, rows behind it are guesses to be judged in the same pass. They lie in
 * the ring alone: nothing is demoted or dropped for them and nothing scored by them, and pages for accepting all of
 * them are reserved here. After quire_step_end the sequence waits for quire_accept. Row r stands at position length +
 * r, in a tree at length + its steps from row 0. [capture] */
QUIRE_API quire_status quire_step_begin(quire_cache* cache, const quire_step_begin_args* args);

typedef struct quire_append_args {
  uint32_t struct_size;
  uint32_t flags;
  uint32_t layer;
  uint32_t reserved;
  quire_rows k; /* [batch, rows, kv_heads, head_dim_k] in the order of the step's slots */
  quire_rows v; /* [batch, rows, kv_heads, head_dim_v] */
  const quire_parallel* parallel;
  quire_error* error;
} quire_append_args;
#define QUIRE_APPEND_ARGS_INIT {sizeof(quire_append_args), 0, 0, 0, {0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}, 0, 0}
/* Carries out the plan of one layer and stores the new token and drafts. Once per layer and step. [capture] */
QUIRE_API quire_status quire_append(quire_cache* cache, const quire_append_args* args);

typedef struct quire_attention_args {
  uint32_t struct_size;
  uint32_t flags;
  uint32_t layer;
  uint32_t rows;       /* query rows per sequence, 1 to 16; 0 means those of the step. Row 0 is the
                          new token's. In a step without drafts row r is one at position length + r
                          whose own K and V are not stored; in one with drafts rows are the step's */
  quire_rows q;        /* [batch, rows, q_heads, head_dim_k] */
  quire_rows out;      /* [batch, rows, q_heads, head_dim_v] */
  float* lse;          /* [batch, rows, q_heads] or NULL */
  uint32_t lse_base_2; /* 0: natural, 1: base 2 */
  uint32_t splits;     /* parts per sequence and KV head: 0 automatic, n fixed (bit-reproducible) */
  uint32_t score_rows; /* first rows that add to scores; 0 means 1 (the new token's), QUIRE_NONE none */
  uint32_t reserved;
  quire_rule rule;
  const quire_parallel* parallel;
  quire_error* error;
} quire_attention_args;
#define QUIRE_ATTENTION_ARGS_INIT                                                             \
  {sizeof(quire_attention_args), 0, 0, 0, {0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}, 0, 0, 0, 0, \
   0, {0, 0, 0, 0, 0, 0}, 0, 0}
/* Attention of the step's sequences over ring and pages in one softmax, after append of the layer; adds to the scores
 * that the policy plans from. Padding and rows that see no token: output 0, LSE -inf, scores untouched. fp32 softmax
 * and sums. Bytes moved: stored codes and metadata once per 16 query columns, 8 + 4 G per token for scores. [capture] */
QUIRE_API quire_status quire_attention(quire_cache* cache, const quire_attention_args* args);

/* Ends the step after append of every layer: lengths advance, emptied pages return. [capture] */
QUIRE_API quire_status quire_step_end(quire_cache* cache, quire_error* error);

typedef struct quire_accept_args {
  uint32_t struct_size;
  uint32_t flags;
  const int32_t* slots;   /* [batch] sequences whose drafts wait, in any order; -1 is padding */
  uint32_t batch;
  uint32_t row_stride;    /* of `rows` */
  const uint32_t* counts; /* [batch] rows that become tokens, 0 to the sequence's drafts */
  const uint32_t* rows;   /* [batch, row_stride] rows in order, each a child of the one before and the
                             first of row 0; NULL: rows 1 to counts */
  const quire_parallel* parallel;
  quire_error* error;
} quire_accept_args;
#define QUIRE_ACCEPT_ARGS_INIT {sizeof(quire_accept_args), 0, 0, 0, 0, 0, 0, 0, 0}
/* Between steps: accepted drafts become tokens, in every layer; the others are gone without a trace, bit for bit.
 * Each accepted token is planned like that of a step (a byte controller waits for the next step). Their queries have
 * not been scored: the next scored query counts for them as well, so that sums of scores stay those of all queries.
 * Takes no more pages than quire_step_begin reserved. Errors: BAD_STATE (no drafts wait, a step is open),
 * INVALID_ARGUMENT; nothing is changed. Cost: as many steps' appends; policies that pick victims by score read all
 * scores once per row but the first. */
QUIRE_API quire_status quire_accept(quire_cache* cache, const quire_accept_args* args);

/* Gives up a step. Before the first append the cache is as before step_begin; after it the sequences of the batch can
 * only be closed. */
QUIRE_API quire_status quire_step_cancel(quire_cache* cache, quire_error* error);

/* ---- Between steps -------------------------------------------------------------------------- */

typedef struct quire_extend_args {
  uint32_t struct_size;
  uint32_t flags;
  int32_t slot;           /* open, or in a prompt that has not stored this layer yet */
  uint32_t layer;
  uint32_t rows;          /* any number of query rows, at positions first_position + row */
  int32_t first_position; /* 0 or more; at `length` and above the whole past is visible */
  quire_rows q;           /* [1, rows, q_heads, head_dim_k] */
  quire_rows out;
  float* lse;             /* [rows, q_heads] or NULL */
  uint32_t lse_base_2;
  uint32_t splits;
  quire_rule rule;
  const quire_parallel* parallel;
  quire_error* error;
} quire_extend_args;
#define QUIRE_EXTEND_ARGS_INIT                                                                 \
  {sizeof(quire_extend_args), 0, 0, 0, 0, 0, {0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}, 0, 0, 0, \
   {0, 0, 0, 0, 0, 0}, 0, 0}
/* Attention of many query rows over what a sequence has stored, without scores: chunked prefill. The chunk's own
 * tokens are the engine's part; join both with quire_merge by their LSE. */
QUIRE_API quire_status quire_extend(quire_cache* cache, const quire_extend_args* args);

typedef struct quire_plan_apply_args {
  uint32_t struct_size;
  uint32_t flags;
  int32_t slot;
  uint32_t first_layer;
  uint32_t layer_count;
  uint32_t tokens;      /* of the sequence: a check against a stale plan */
  const uint8_t* tiers; /* [layer_count, kv_heads, tokens]: 0 high, 1 low, 254 drop, 255 leave */
  quire_error* error;
} quire_plan_apply_args;
#define QUIRE_PLAN_APPLY_ARGS_INIT {sizeof(quire_plan_apply_args), 0, 0, 0, 0, 0, 0, 0}
/* Carries out a foreign plan on stored tokens; all or nothing. Tiers only go down: a plan that promotes, or drops
 * what the ring holds, is refused. Entries of dropped tokens are ignored. */
QUIRE_API quire_status quire_plan_apply(quire_cache* cache, const quire_plan_apply_args* args);

typedef struct quire_gather_args {
  uint32_t struct_size;
  uint32_t flags;
  int32_t slot;
  uint32_t layer;
  uint32_t head;       /* KV head */
  uint32_t capacity;   /* tokens that the outputs have room for */
  quire_rows k;        /* [1, capacity, 1, head_dim_k], transforms undone; data NULL: not wanted */
  quire_rows v;
  int32_t* positions;  /* [capacity] or NULL */
  uint32_t* count;     /* tokens retained, also when they do not fit */
  quire_error* error;
} quire_gather_args;
#define QUIRE_GATHER_ARGS_INIT \
  {sizeof(quire_gather_args), 0, 0, 0, 0, 0, {0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}, 0, 0, 0}
/* Decodes one head for foreign kernels, tokens in the order ring, high, low. */
QUIRE_API quire_status quire_gather(quire_cache* cache, const quire_gather_args* args);

/* ---- Any time ------------------------------------------------------------------------------- */

/* Numbers of the whole cache. Bytes: every one that the cache holds for open sequences; what it has whether any is
 * open or not (free lists, plans of a step, page counters) is part of quire_cache_sizes.tables alone. */
typedef struct quire_stats {
  uint32_t struct_size;
  uint32_t sequences;       /* open */
  uint64_t pages;           /* of the pool */
  uint64_t live_pages;
  uint64_t promised_pages;  /* to open prompts */
  uint64_t record_bytes;    /* codes, metadata, scores, positions in pages */
  uint64_t page_bytes;      /* live pages x page bytes */
  uint64_t ring_bytes;      /* blocks of open sequences, offset vectors not included */
  uint64_t offset_bytes;    /* offset vectors in them */
  uint64_t table_bytes;     /* directories, chunks and head states of open sequences */
  uint64_t free_bytes;      /* free pages x page bytes */
  uint64_t workspace_bytes; /* peak scratch, shared by all sequences */
  double fragmentation;     /* share of live page bytes that holds no record */
  uint64_t tokens_dropped;  /* events since create */
  uint64_t tokens_demoted;
  uint64_t values_saturated;
  uint64_t shortages;       /* calls refused for want of pages */
  uint64_t steps;
  uint64_t shared_pages;    /* live pages that several sequences hold, each counted once */
  uint32_t handles;         /* of `sequences`: frozen */
  uint32_t reserved;
} quire_stats;
#define QUIRE_STATS_INIT {sizeof(quire_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0}
/* Fills *stats from counters; any thread, any time, O(1). Errors: INVALID_ARGUMENT, ABI_MISMATCH. */
QUIRE_API quire_status quire_stats_get(const quire_cache* cache, quire_stats* stats, quire_error* error);

enum quire_seq_state {
  QUIRE_SEQ_CLOSED = 0,
  QUIRE_SEQ_OPEN = 1,
  QUIRE_SEQ_PREFILL = 2,
  QUIRE_SEQ_STEP = 3,
  QUIRE_SEQ_DRAFT = 4,
  QUIRE_SEQ_BROKEN = 5, /* a step or prompt was given up half-way: only close is legal */
  QUIRE_SEQ_FROZEN = 6  /* a prefix for others to read */
};
typedef struct quire_seq_info {
  uint32_t struct_size;
  uint32_t state;          /* quire_seq_state */
  uint32_t tokens;         /* committed */
  uint32_t reserved;
  uint64_t high_tokens;    /* over all layers and heads */
  uint64_t low_tokens;
  uint64_t ring_tokens;
  uint64_t live_pages;
  uint64_t record_bytes;   /* in pages */
  uint64_t page_bytes;
  uint64_t ring_bytes;
  uint64_t offset_bytes;
  uint64_t table_bytes;
  uint64_t total_bytes;    /* page_bytes + ring_bytes + offset_bytes + table_bytes */
  uint64_t fp16_bytes;     /* 2 (head_dim_k + head_dim_v) x tokens x kv_heads x layers */
  uint32_t readers;        /* of a frozen sequence: open ones that came from it */
  uint32_t reserved2;
} quire_seq_info;
#define QUIRE_SEQ_INFO_INIT {sizeof(quire_seq_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
/* State and bytes of one sequence in any state but closed, O(1). Errors: BAD_STATE, INVALID_ARGUMENT, ABI_MISMATCH. */
QUIRE_API quire_status quire_seq_info_get(const quire_cache* cache, int32_t slot, quire_seq_info* info,
                                          quire_error* error);

typedef struct quire_query_args {
  uint32_t struct_size;
  uint32_t flags;
  int32_t slot;
  uint32_t layer;
  uint32_t head;
  uint32_t capacity;
  int32_t* positions; /* [capacity] or NULL */
  uint8_t* tiers;     /* [capacity] or NULL: 0 high, 1 low, 255 ring */
  float* scores;      /* [capacity] or NULL */
  uint32_t* count;    /* tokens retained, also when they do not fit */
  quire_error* error;
} quire_query_args;
#define QUIRE_QUERY_ARGS_INIT {sizeof(quire_query_args), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
/* Positions, tiers and scores of what one head retains, in the order of quire_gather. */
QUIRE_API quire_status quire_query(const quire_cache* cache, const quire_query_args* args);

/* Pages that a prompt of `tokens` tokens reserves under a policy, and (unless NULL) pages free for it: the closed
 * form of admission; of several layer groups those of the one with the least to spare. quire_prefill_begin reserves
 * more where a byte budget or target meets overrides of single heads with lower thresholds: they may keep more than
 * the policy. */
QUIRE_API quire_status quire_pages_for(const quire_cache* cache, const quire_policy* policy, uint32_t tokens,
                                       uint64_t* pages, uint64_t* available, quire_error* error);

/* Pages that the next step of these sequences can need at most, with `rows` rows for each (0 means 1), and pages free
 * for it; of several layer groups those of the one with the least to spare. */
QUIRE_API quire_status quire_headroom_pages(const quire_cache* cache, const int32_t* slots, uint32_t count,
                                            uint32_t rows, uint64_t* needed, uint64_t* available, quire_error* error);

typedef struct quire_explain_report {
  uint32_t struct_size;
  uint32_t supported;         /* 1: quire_attention takes it */
  char kernel[64];            /* which implementation runs, and on which instruction set */
  char reason[128];           /* why not, when not supported */
  uint64_t bytes_per_token;   /* codes and metadata that attention reads per high-tier token */
  uint64_t score_bytes_per_token;
  uint64_t workspace_bytes;   /* that the call uses of the cache's workspace, at most */
} quire_explain_report;
#define QUIRE_EXPLAIN_REPORT_INIT {sizeof(quire_explain_report), 0, {0}, {0}, 0, 0, 0}
/* Says which kernel an attention call would run, or which field it would be refused for. Reads layer, rows, splits,
 * score_rows, lse_base_2, dtypes, rule and parallel; touches no data. */
QUIRE_API quire_status quire_explain(const quire_cache* cache, const quire_attention_args* args,
                                     quire_explain_report* report);

/* ---- Plain functions over caller memory ------------------------------------------------------ */

/* Vectors of one format outside any page: row-major codes plane by plane, then metadata. */
typedef struct quire_codec_args {
  uint32_t struct_size;
  uint32_t flags;
  quire_vector_format format;
  uint32_t head_dim;
  uint32_t transform_seed;
  uint64_t count;          /* vectors */
  quire_rows rows;         /* [1, count, 1, head_dim], float side */
  const float* offset;     /* [head_dim] for QUIRE_TRANSFORM_OFFSET, or NULL: zero */
  uint8_t* codes[2];       /* plane 0 and 1, [count, plane row bytes] */
  uint16_t* meta;          /* fp16 [numbers per vector, count], or NULL where there are none */
  uint64_t* saturated;     /* adds elements moved to the border of fp16; or NULL */
  quire_error* error;
} quire_codec_args;
#define QUIRE_CODEC_ARGS_INIT \
  {sizeof(quire_codec_args), 0, {0, 0, 0, 0}, 0, 0, 0, {0, 0, 0, 0, 0, 0}, 0, {0, 0}, 0, 0, 0}
/* Float rows to codes and metadata (transform included), and back (transform undone). */
QUIRE_API quire_status quire_encode(const quire_codec_args* args);
QUIRE_API quire_status quire_decode(const quire_codec_args* args);

/* Codes of one format to codes of a cheaper one, e.g. K8 to K4 by integer division. `to` gives format, codes and
 * meta; count and head dim are those of `from`. Transforms must agree. */
QUIRE_API quire_status quire_demote(const quire_codec_args* from, const quire_codec_args* to);

/* One part of an attention: normalised output and LSE over its own tokens. */
typedef struct quire_part {
  quire_rows out;      /* [1, rows, q_heads, head_dim_v] */
  const float* lse;    /* [rows, q_heads] */
  uint32_t lse_base_2;
  uint32_t reserved;
} quire_part;

typedef struct quire_merge_args {
  uint32_t struct_size;
  uint32_t flags;
  const quire_part* parts; /* also of other libraries */
  uint32_t part_count;     /* 1 to 64 */
  uint32_t rows;
  uint32_t q_heads;
  uint32_t head_dim_v;
  const float* sink_logits; /* [q_heads] or NULL: joins the denominator here, last */
  quire_rows out;           /* may be the `out` of a part */
  float* lse;               /* [rows, q_heads] or NULL */
  uint32_t lse_base_2;
  uint32_t reserved;
  quire_error* error;
} quire_merge_args;
#define QUIRE_MERGE_ARGS_INIT {sizeof(quire_merge_args), 0, 0, 0, 0, 0, 0, 0, {0, 0, 0, 0, 0, 0}, 0, 0, 0, 0}
/* Joins parts by their LSE. Parts with LSE -inf count nothing; all -inf gives 0 and -inf. [capture] */
QUIRE_API quire_status quire_merge(const quire_merge_args* args);

/* An engine's own blocks as quire pages: address = pool + id * page_stride + head * head_stride. */
typedef struct quire_view {
  uint32_t struct_size;
  uint32_t flags;
  quire_layout_desc layout;
  uint32_t transform_seed;
  uint32_t q_heads;
  uint32_t kv_heads;
  uint32_t sequences;
  void* pool;
  int64_t page_stride;    /* bytes; 0 means page_bytes */
  int64_t head_stride;    /* bytes; 0: one page per head, the table has a row per head */
  const int32_t* table;   /* page ids: high tier from the left of a row, low from the right */
  int64_t table_sequence_stride; /* elements */
  int64_t table_head_stride;     /* 0: heads share a row */
  uint32_t table_capacity;       /* ids in a row */
  uint32_t reserved;
  const uint32_t* tokens;        /* [sequences, kv_heads, tier_count], or with head stride 0 ... */
  int64_t tokens_sequence_stride;
  int64_t tokens_head_stride;    /* ... [sequences, tier_count] */
  const uint16_t* k_offset;      /* fp16 [kv_heads, head_dim_k] or NULL */
  const uint16_t* v_offset;
} quire_view;
#define QUIRE_VIEW_INIT \
  {sizeof(quire_view), 0, QUIRE_LAYOUT_DESC_INIT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

typedef struct quire_view_append_args {
  uint32_t struct_size;
  uint32_t flags;
  const quire_view* view;
  uint32_t tier;
  uint32_t first_token;     /* index within the tier, equal for all sequences and heads */
  uint32_t count;
  int32_t first_position;
  quire_rows k;             /* [sequences, count, kv_heads, head_dim_k] */
  quire_rows v;
  quire_error* error;
} quire_view_append_args;
#define QUIRE_VIEW_APPEND_ARGS_INIT                                                       \
  {sizeof(quire_view_append_args), 0, 0, 0, 0, 0, 0, {0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}, 0}
/* Encodes tokens into an engine's pages. The engine owns ids, tables and lengths. [capture] */
QUIRE_API quire_status quire_view_append(const quire_view_append_args* args);

typedef struct quire_view_attention_args {
  uint32_t struct_size;
  uint32_t flags;
  const quire_view* view;
  uint32_t rows;                 /* per sequence, 1 to 16; 0 means 1 */
  uint32_t lse_base_2;
  const int32_t* first_position; /* [sequences] position of row 0 */
  quire_rows q;                  /* [sequences, rows, q_heads, head_dim_k] */
  quire_rows out;
  float* lse;                    /* [sequences, rows, q_heads] or NULL */
  quire_rule rule;
  uint32_t splits;
  uint32_t reserved;
  void* workspace;               /* of quire_view_workspace bytes, aligned to 128 */
  uint64_t workspace_bytes;
  const quire_parallel* parallel;
  quire_error* error;
} quire_view_attention_args;
#define QUIRE_VIEW_ATTENTION_ARGS_INIT                                                       \
  {sizeof(quire_view_attention_args), 0, 0, 0, 0, 0, {0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}, \
   0, {0, 0, 0, 0, 0, 0}, 0, 0, 0, 0, 0, 0}
/* Bytes of workspace for one call with these arguments; a closed form of shapes and lengths. */
QUIRE_API quire_status quire_view_workspace(const quire_view_attention_args* args, uint64_t* bytes);

/* Attention over an engine's pages: the kernel of quire_attention without a cache object. [capture] */
QUIRE_API quire_status quire_view_attention(const quire_view_attention_args* args);

typedef struct quire_pages_args {
  uint32_t struct_size;
  uint32_t flags;
  int32_t* ids;          /* [capacity] ring of free ids; filled with 0.. by the caller at first */
  uint64_t capacity;
  uint64_t* head;        /* taken so far; starts at 0 */
  uint64_t* tail;        /* capacity + returned so far; starts at capacity */
  uint32_t* counts;      /* [rows] pages to take per row */
  uint64_t rows;
  int32_t* out;          /* [rows, row_stride]: ids are written to the front of each row */
  int64_t row_stride;
  quire_error* error;
} quire_pages_args;
#define QUIRE_PAGES_ARGS_INIT {sizeof(quire_pages_args), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
/* The page allocator alone: takes counts[i] pages for every row by one prefix sum, all or nothing, in the order of
 * the rows. [capture] */
QUIRE_API quire_status quire_pages_take(const quire_pages_args* args);

/* Returns `rows` ids that lie in `out` (row_stride apart) to the free list, in order. [capture] */
QUIRE_API quire_status quire_pages_return(const quire_pages_args* args);
#ifdef __cplusplus
}
#endif
#endif
