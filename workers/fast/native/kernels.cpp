// What a decoder layer computes, as functions with a C interface: see workers/fast/kernels.py, which builds and calls them.
//
// All matrices are contiguous, rows first. Activations are Numbers of the model's kind; the residual stream, norms, rotary
// embeddings, softmax and every sum are float32. `threads` says how many may work.

#include <algorithm>
#include <type_traits>
#include <vector>

#include "attention.h"
#include "attention_tiles.h"
#include "attention_vectors.h"
#include "linear.h"
#include "linear_tiles.h"
#include "products.h"
#include "sinks.h"
#include "team.h"
#include "vectors.h"

namespace {

constexpr int64_t WORTH_A_THREAD = 16384;  // numbers to work on: below, waking a thread costs more than it brings

// Decided once: tiles and vectors round in different places, and the bits of a token must not depend on when it came.
Products products() {
    static const Products chosen = choose_products();
    return chosen;
}

int threads_for(int64_t numbers, int threads) { return numbers < WORTH_A_THREAD ? 1 : threads; }

template <class Numbers>
void normalise(const float* residual, const float* weight, typename Numbers::Number* out, int64_t rows, int64_t width,
               float epsilon, int threads) {
    team().share(rows, threads_for(rows * width, threads), [&](int64_t row) {
        const float* from = residual + row * width;
        Floats squares{};
        int64_t at = 0;
        for (; at + LANES <= width; at += LANES) squares += read<Floats>(from + at) * read<Floats>(from + at);
        float total = sum(squares);
        for (; at < width; at++) total += from[at] * from[at];
        const float factor = 1 / std::sqrt(total / width + epsilon);
        typename Numbers::Number* to = out + row * width;
        for (at = 0; at + LANES <= width; at += LANES)
            Numbers::store(to + at, read<Floats>(from + at) * factor * read<Floats>(weight + at));
        for (; at < width; at++) to[at] = Numbers::store_one(from[at] * factor * weight[at]);
    });
}

// --- attention ---------------------------------------------------------------------------------------------------------

}  // namespace

// Mirrored by `LayerAttention` in structures.py: what a layer's attention is, whatever the step. Norms may be null.
struct LayerAttention {
    void *keys, *values;
    const float *query_norm, *key_norm;
    int64_t heads, kv_heads, dim, block_size, window;
    float scale, epsilon;
};

// Mirrored by `StepAttention` in structures.py: what the rows of a step are, whatever the layer. [rows] each of the indices.
struct StepAttention {
    void *qkv, *results;
    const float *cosines, *sines;  // [rows, dim]
    const int64_t *positions, *slots, *tables;
    const Tile* tiles;
    int64_t rows, num_tiles, table_width, threads;
};

namespace {

// One head of one token, normed where the model norms it and turned to its position, as float32.
template <class Numbers>
void turn(const typename Numbers::Number* head, const float* norm, const LayerAttention& layer, const StepAttention& step,
          int64_t row, float* out) {
    const int64_t dim = layer.dim, half = dim / 2;
    float plain[MOST_DIM];
    for (int64_t at = 0; at < dim; at++) plain[at] = Numbers::load_one(head[at]);
    if (norm != nullptr) {
        float squares = 0;
        for (int64_t at = 0; at < dim; at++) squares += plain[at] * plain[at];
        const float factor = 1 / std::sqrt(squares / dim + layer.epsilon);
        for (int64_t at = 0; at < dim; at++) plain[at] *= factor * norm[at];
    }
    const float *cosines = step.cosines + row * dim, *sines = step.sines + row * dim;
    for (int64_t at = 0; at < half; at++) {
        out[at] = plain[at] * cosines[at] - plain[at + half] * sines[at];
        out[at + half] = plain[at + half] * cosines[at + half] + plain[at] * sines[at + half];
    }
}

// Turns a token's queries where they are, scaled as scores will be, and puts its keys and values into the pool.
template <class Numbers>
void turn_and_keep(const LayerAttention& layer, const StepAttention& step, int64_t row) {
    using Number = typename Numbers::Number;
    constexpr int64_t GROUP = Numbers::GROUP;
    const int64_t dim = layer.dim, block_size = layer.block_size;
    Number* head = static_cast<Number*>(step.qkv) + row * (layer.heads + 2 * layer.kv_heads) * dim;
    float turned[MOST_DIM];
    for (int64_t query = 0; query < layer.heads; query++, head += dim) {
        turn<Numbers>(head, layer.query_norm, layer, step, row, turned);
        for (int64_t at = 0; at < dim; at++) head[at] = Numbers::store_one(turned[at] * layer.scale);
    }
    const int64_t position = step.positions[row], within = position % block_size;
    const int64_t block = step.tables[step.slots[row] * step.table_width + position / block_size];
    for (int64_t kv_head = 0; kv_head < layer.kv_heads; kv_head++, head += dim) {
        const int64_t base = (block * layer.kv_heads + kv_head) * block_size * dim;
        Number *keys = static_cast<Number*>(layer.keys) + base, *values = static_cast<Number*>(layer.values) + base;
        turn<Numbers>(head, layer.key_norm, layer, step, row, turned);
        for (int64_t at = 0; at < dim; at++)
            keys[(at / GROUP * block_size + within) * GROUP + at % GROUP] = Numbers::store_one(turned[at]);
        const Number* value = head + layer.kv_heads * dim;
        for (int64_t at = 0; at < dim; at++) values[(within / GROUP * dim + at) * GROUP + within % GROUP] = value[at];
    }
}

// Key heads that one thread takes together: a block's heads lie side by side. Fewer where threads would go without work.
int64_t key_heads_together(const LayerAttention& layer, const StepAttention& step) {
    int64_t most_queries = 1;
    for (int64_t tile = 0; tile < step.num_tiles; tile++) most_queries = std::max(most_queries, step.tiles[tile].count);
    if (step.num_tiles < 2 * step.threads) return 1;
    return std::clamp<int64_t>(MOST_ROWS * layer.kv_heads / (most_queries * layer.heads), 1, layer.kv_heads);
}

template <class Numbers, class Products>
void attend_by(const LayerAttention& layer, const StepAttention& step) {
    using Number = typename Numbers::Number;
    const int64_t stride = (layer.heads + 2 * layer.kv_heads) * layer.dim;
    team().share(step.rows, threads_for(step.rows * stride, step.threads),
                 [&](int64_t row) { turn_and_keep<Numbers>(layer, step, row); });

    const Heads<Numbers> heads{static_cast<Number*>(step.qkv),
                               static_cast<Number*>(step.results),
                               static_cast<Number*>(layer.keys),
                               static_cast<Number*>(layer.values),
                               step.tables,
                               stride,
                               step.table_width,
                               layer.block_size,
                               layer.heads,
                               layer.kv_heads,
                               layer.dim,
                               layer.window};
    const int64_t together = key_heads_together(layer, step), groups = (layer.kv_heads + together - 1) / together;
    team().share_joined(step.num_tiles * groups, step.threads, [&] {
        return [&, products = Products(heads)](int64_t item) mutable {
            const int64_t tile = item / groups, next = std::min(tile + step.threads, step.num_tiles - 1);
            const int64_t head = item % groups * together, num_heads = std::min(together, layer.kv_heads - head);
            TileAttention(heads, step.tiles[tile], step.tiles[next], head, num_heads, products).run();
        };
    });
}

template <class Numbers>
void attend(const LayerAttention& layer, const StepAttention& step) {
#if HAVE_TILES
    if constexpr (std::is_same_v<Numbers, Bfloat16>)
        if (products() == TILES) return attend_by<Numbers, AttentionTiles>(layer, step);
#endif
    attend_by<Numbers, AttentionVectors<Numbers>>(layer, step);
}

// --- linears ------------------------------------------------------------------------------------------------------------

template <class Numbers, class Sink>
void apply(const Linear& linear, const void* inputs, int64_t rows, int threads, Sink&& sink) {
#if HAVE_TILES
    if constexpr (std::is_same_v<Numbers, Bfloat16>)
        if (products() == TILES) return apply_by<Numbers, LinearTiles>(linear, inputs, rows, threads, sink);
#endif
    apply_by<Numbers, LinearVectors<Numbers>>(linear, inputs, rows, threads, sink);
}

}  // namespace

// --- the interface ------------------------------------------------------------------------------------------------------

#define BY_KIND(kind, call)         \
    if ((kind) == FLOAT32) {        \
        using Numbers = Float32;    \
        call;                       \
    } else {                        \
        using Numbers = Bfloat16;   \
        call;                       \
    }

extern "C" {

int64_t panel_outputs() { return PANEL; }

int64_t most_tile_rows() { return MOST_ROWS; }

int64_t most_dim() { return MOST_DIM; }

int64_t lanes() { return LANES; }

int64_t products_of_bfloat16() { return products(); }

void normalise_rows(int64_t kind, const float* residual, const float* weight, void* out, int64_t rows, int64_t width,
                    float epsilon, int threads) {
    BY_KIND(kind, normalise<Numbers>(residual, weight, static_cast<Numbers::Number*>(out), rows, width, epsilon, threads))
}

void attend_rows(int64_t kind, const LayerAttention* layer, const StepAttention* step) {
    BY_KIND(kind, attend<Numbers>(*layer, *step))
}

void project_rows(const Linear* linear, const void* input, void* out, int64_t rows, int threads) {
    BY_KIND(linear->kind, apply<Numbers>(*linear, input, rows, threads,
                                         Stored<Numbers>{static_cast<Numbers::Number*>(out), linear->outputs}))
}

void project_rows_float(const Linear* linear, const void* input, float* out, int64_t rows, int threads) {
    BY_KIND(linear->kind, apply<Numbers>(*linear, input, rows, threads, Stored<Float32>{out, linear->outputs}))
}

void project_rows_add(const Linear* linear, const void* input, float* residual, int64_t rows, int threads) {
    BY_KIND(linear->kind, apply<Numbers>(*linear, input, rows, threads, Added{residual, linear->outputs}))
}

void project_rows_gated(const Linear* linear, const void* input, void* out, int64_t rows, int64_t width, int threads) {
    BY_KIND(linear->kind, apply<Numbers>(*linear, input, rows, threads,
                                         Gated<Numbers>{static_cast<Numbers::Number*>(out), width}))
}

void project_rows_best(const Linear* linear, const void* input, int64_t* chosen, int64_t rows, int threads) {
    BestOfPanels best(rows, linear->outputs);
    BY_KIND(linear->kind, apply<Numbers>(*linear, input, rows, threads, best))
    for (int64_t row = 0; row < rows; row++) chosen[row] = best.of(row);
}
}
