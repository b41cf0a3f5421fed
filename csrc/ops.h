// The ops that a program is made of; kernels/operations.py says what each computes.
#pragma once
#include <array>
#include <map>

#include "program.h"
#include "routing.h"

namespace octavo {

using Weights = std::shared_ptr<PackedMatrix>;

struct NormOf { // a norm that was folded into the op after it
    NormKind kind = NormKind::None;
    const float* gain = nullptr;
    const float* bias = nullptr;
    float eps = 0.0f;
};

std::unique_ptr<Op> make_embed(Buffer y, Weights table, float scale);
std::unique_ptr<Op> make_embed_positions(Buffer x, Buffer y, Weights table, int64_t offset);
std::unique_ptr<Op> make_gather(Buffer x, Buffer y);
std::unique_ptr<Op> make_replace(Buffer x, Buffer y);
std::unique_ptr<Op> make_norm(Buffer x, Buffer y, NormOf norm);
std::unique_ptr<Op> make_add(Buffer x, Buffer y, Buffer z);
std::unique_ptr<Op> make_gate(Buffer x, Buffer gate, Buffer y);

// Throws std::invalid_argument where rotary tables of so many positions lack one of the batch's.
void check_rotary(const BatchView& b, int64_t positions);

// Scratch that prepare and linear of one weight share.
size_t linear_scratch_bytes(const Kernels& k, const Matrix& w);

struct LinearSpec {
    Buffer x, y;
    bool has_residual = false;
    Buffer residual{};
    Weights weight;
    int64_t column = 0; // of y, where the output starts
    NormOf norm;
    const float* bias = nullptr;
    Activation activation = Activation::None;
    float scale = 1.0f, softcap = 0.0f;
    int64_t prepared = 0; // arena offset of the prepared activations
};
std::unique_ptr<Op> make_linear(LinearSpec spec);
// Whether the largest of each row of y can be found without computing all of it; an op that does.
bool screens(const LinearSpec& spec);
std::unique_ptr<Op> make_head(LinearSpec spec, const Limits& limits);

struct MoeSpec {
    Buffer x, router, y;
    std::vector<Weights> gate_up, down;
    int64_t top_k = 1;
    Activation activation = Activation::None;
    bool renormalize = false;
    Routing routing;
    int64_t workspace = 0; // arena offset
};
std::unique_ptr<Op> make_moe(MoeSpec spec);
// Bytes of workspace for max_tokens tokens.
size_t moe_workspace(const MoeSpec& spec, int64_t max_tokens);

struct RotarySpec {
    Buffer qkv, q;
    std::shared_ptr<KVCache> cache;
    size_t layer = 0;
    int64_t heads = 1;
    const float* cos = nullptr;
    const float* sin = nullptr;
    int64_t rotary_dim = 0, rotary_positions = 0;
    bool interleaved = false;
    const float* q_norm = nullptr;
    const float* k_norm = nullptr;
    bool q_together = false, k_together = false;
    float eps = 0.0f;
};
std::unique_ptr<Op> make_rotary(RotarySpec spec);

struct LatentSpec {
    Buffer q_latent, q_rope, latent, k_rope, q;
    std::shared_ptr<KVCache> cache;
    size_t layer = 0;
    int64_t heads = 1;
    const float* cos = nullptr;
    const float* sin = nullptr;
    int64_t rotary_dim = 0, rotary_positions = 0;
    bool interleaved = false;
};
std::unique_ptr<Op> make_latent(LatentSpec spec);

struct HeadLinearSpec {
    Buffer x, y;
    std::vector<Weights> weights;
    int64_t workspace = 0; // arena offset
};
std::unique_ptr<Op> make_head_linear(HeadLinearSpec spec);
// Bytes of workspace for max_rows rows.
size_t head_linear_workspace(const std::vector<Weights>& weights, int64_t max_rows);

struct AttentionOpSpec {
    Buffer q, y;
    std::shared_ptr<KVCache> cache;
    size_t layer = 0;
    int64_t heads = 1;
    float scale = 1.0f, softcap = 0.0f;
    int64_t window = 0;
    const float* slopes = nullptr;
    const float* sinks = nullptr;
    Sight sight = Sight::Causal;
    const float* bias = nullptr; // AttentionArgs.bias
    int64_t reach = 0;
};

class AttentionPlan;

// Layers of one geometry share the plan of each replay.
class AttentionPlans {
public:
    std::unique_ptr<Op> make(AttentionOpSpec spec, const Limits& limits, int threads);

private:
    std::map<std::array<int64_t, 7>, std::shared_ptr<AttentionPlan>> plans_;
};

} // namespace octavo
