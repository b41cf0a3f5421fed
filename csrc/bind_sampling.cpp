// Draws for Python: a sampler of logits that are arrays, and a decoder whose draws stay in the extension.
#include "bind_program.h"
#include "decode.h"

namespace octavo {
namespace {

using TokenListsTuple = std::tuple<Array<int64_t, 1>, Array<int32_t, 1>, Array<float, 1>>;

TokenListsView lists_of(const TokenListsTuple& t, size_t rows) {
    const auto& [starts, tokens, values] = t;
    if (starts.shape(0) != rows + 1 || tokens.shape(0) != values.shape(0))
        throw std::invalid_argument("a token list's arrays differ in length");
    return {starts.data(), tokens.data(), values.data(), static_cast<int64_t>(tokens.shape(0))};
}

// The tokens; what belongs to log-probabilities is written to the arrays, which are empty where no row asks.
std::vector<int32_t> sample(Sampler& sampler, const Array<float, 2>& logits, const Array<uint8_t, 1>& params,
                            const Array<int64_t, 1>& positions, const TokenListsTuple& bias,
                            const TokenListsTuple& banned, const TokenListsTuple& seen,
                            const std::optional<Array<uint32_t, 2>>& mask,
                            const std::optional<Array<int32_t, 1>>& given, const Result<double, 1>& logprob,
                            const Result<int64_t, 1>& rank, const Result<int32_t, 2>& top_token,
                            const Result<double, 2>& top_logprob) {
    const size_t rows = logits.shape(0), vocab = logits.shape(1), scored = logprob.shape(0);
    if (vocab != static_cast<size_t>(sampler.vocab())) throw std::invalid_argument("the logits have another vocabulary");
    if (params.shape(0) != rows * sizeof(SampleParams) ||
        reinterpret_cast<uintptr_t>(params.data()) % alignof(SampleParams))
        throw std::invalid_argument("the rows' records have another layout");
    const bool same = positions.shape(0) == rows && (scored == rows || scored == 0) && rank.shape(0) == scored &&
                      top_token.shape(0) == scored && top_logprob.shape(0) == scored &&
                      top_token.shape(1) == top_logprob.shape(1);
    if (!same || (given && given->shape(0) != rows) || (mask && (mask->shape(0) != rows || mask->shape(1) != (vocab + 31) / 32)))
        throw std::invalid_argument("arrays of a sampling batch differ in length");
    std::vector<int32_t> token(rows);
    const SampleBatch batch{logits.data(), static_cast<int64_t>(rows), static_cast<int64_t>(vocab),
                            reinterpret_cast<const SampleParams*>(params.data()), positions.data(), lists_of(bias, rows),
                            lists_of(banned, rows), lists_of(seen, rows), mask ? mask->data() : nullptr,
                            given ? given->data() : nullptr, token.data(), logprob.data(), rank.data(), top_token.data(), top_logprob.data(),
                            scored ? static_cast<int64_t>(top_token.shape(1)) : -1};
    nb::gil_scoped_release release;
    sampler.sample(batch);
    return token;
}

// Its arrays are kept alive by their Python owner.
DecodeRows decode_rows(const Result<int32_t, 2>& tokens, const Result<int64_t, 1>& lengths, const IntTable& pages,
                       int64_t page_size, const Array<uint8_t, 1>& params, const std::optional<IntTable>& local) {
    const size_t rows = tokens.shape(0);
    if (lengths.shape(0) != rows || pages.shape(0) != rows || params.shape(0) != rows * sizeof(SampleParams) ||
        reinterpret_cast<uintptr_t>(params.data()) % alignof(SampleParams))
        throw std::invalid_argument("the rows' arrays differ in length");
    if (local && (local->shape(0) != rows || local->shape(1) != pages.shape(1)))
        throw std::invalid_argument("the rows' local pages have the shape of their pages");
    return {tokens.data(), static_cast<int64_t>(tokens.shape(1)), lengths.data(), static_cast<int64_t>(rows),
            pages.data(), static_cast<int64_t>(pages.shape(1)), page_size,
            reinterpret_cast<const SampleParams*>(params.data()), local ? local->data() : nullptr};
}

// refuses(index, token) -> whether the token is refused; then `room` holds the mask of what may come.
std::vector<int32_t> decode(Decoder& decoder, const std::vector<int32_t>& rows, const std::vector<int32_t>& starts,
                            const std::optional<Array<uint32_t, 2>>& mask, const nb::object& refuses,
                            const std::optional<Array<uint32_t, 1>>& room) {
    if (mask && (mask->shape(0) != rows.size() || mask->shape(1) != static_cast<size_t>(decoder.vocab() + 31) / 32))
        throw std::invalid_argument("the mask has a line of bits for each row");
    if (!refuses.is_none() && (!room || room->shape(0) != static_cast<size_t>(decoder.vocab() + 31) / 32))
        throw std::invalid_argument("the room for a mask has a line of bits");
    std::vector<int32_t> drawn;
    const uint32_t* bits = mask ? mask->data() : nullptr;
    nb::gil_scoped_release release;
    std::optional<nb::gil_scoped_acquire> held; // from the first question on: each return may have to wait for others
    Refusal refusal;
    if (!refuses.is_none())
        refusal = [&](int64_t index, int32_t token) -> const uint32_t* {
            if (!held) held.emplace();
            return nb::cast<bool>(refuses(index, token)) ? room->data() : nullptr;
        };
    decoder.step(rows, starts, bits, refusal, drawn);
    return drawn;
}

std::vector<int32_t> redraw(Decoder& decoder, const std::vector<int32_t>& indices, const Array<uint32_t, 2>& mask) {
    if (mask.shape(0) != indices.size() || mask.shape(1) != static_cast<size_t>(decoder.vocab() + 31) / 32)
        throw std::invalid_argument("the mask has a line of bits for each index");
    std::vector<int32_t> drawn;
    nb::gil_scoped_release release;
    decoder.redraw(indices, mask.data(), drawn);
    return drawn;
}

} // namespace

void bind_sampling(nb::module_& m) {
    nb::class_<Sampler>(m, "Sampler")
        .def("__init__", [](Sampler* self, std::shared_ptr<Pool> pool, const std::string& isa, int64_t vocab) {
            new (self) Sampler(std::move(pool), choose_kernels(isa), vocab);
        })
        .def("sample", &sample, "logits"_a, "params"_a, "positions"_a, "bias"_a, "banned"_a, "seen"_a, "mask"_a.none(),
             "given"_a.none(), "logprob"_a, "rank"_a, "top_token"_a, "top_logprob"_a);
    nb::class_<Decoder>(m, "Decoder")
        .def("__init__", [](Decoder* self, Builder& program, Sampler& sampler, const Result<int32_t, 2>& tokens,
                            const Result<int64_t, 1>& lengths, const IntTable& pages, int64_t page_size,
                            const Array<uint8_t, 1>& params, const std::optional<IntTable>& local_pages) {
            new (self) Decoder(program.program(), sampler,
                               decode_rows(tokens, lengths, pages, page_size, params, local_pages));
        }, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), "program"_a, "sampler"_a, "tokens"_a, "lengths"_a, "pages"_a,
             "page_size"_a, "params"_a, "local_pages"_a.none() = nb::none())
        .def_prop_ro("forward_s", &Decoder::forward_s)
        .def_prop_ro("drawing_s", &Decoder::drawing_s)
        .def_prop_ro("chosen", &Decoder::chosen)
        .def("step", &decode, "rows"_a, "starts"_a, "mask"_a.none() = nb::none(), "refuses"_a.none() = nb::none(),
             "room"_a.none() = nb::none())
        .def("redraw", &redraw, "indices"_a, "mask"_a);
}

} // namespace octavo
