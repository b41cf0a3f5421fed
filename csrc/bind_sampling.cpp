// Draws for Python: a sampler of logits that are arrays, and a decoder whose draws stay in the extension.
#include "bind_program.h"
#include "decode.h"

namespace octavo {
namespace {

// A Python object's arrays, read by name and kept for a call: kernels/draws.py has their classes.
struct TokenListsOf {
    Array<int64_t, 1> starts;
    Array<int32_t, 1> tokens;
    Array<float, 1> values;

    explicit TokenListsOf(const nb::object& lists)
        : starts(named<Array<int64_t, 1>>(lists, "starts")), tokens(named<Array<int32_t, 1>>(lists, "tokens")),
          values(named<Array<float, 1>>(lists, "values")) {}
    TokenListsView view(size_t rows) const {
        if (starts.shape(0) != rows + 1 || tokens.shape(0) != values.shape(0))
            throw std::invalid_argument("a token list's arrays differ in length");
        return {.starts = starts.data(),
                .tokens = tokens.data(),
                .values = values.data(),
                .entries = static_cast<int64_t>(tokens.shape(0))};
    }
};

using Bits = Array<uint32_t, 2>;

const uint32_t* bits_of(const Bits& bits, size_t rows, size_t vocab) {
    if (bits.shape(0) != rows || bits.shape(1) != (vocab + 31) / 32)
        throw std::invalid_argument("arrays of a sampling batch differ in length");
    return bits.data();
}

struct EditsOf {
    TokenListsOf bias, banned, seen;
    std::optional<Bits> mask, boost;
    std::optional<Array<float, 1>> deltas;

    explicit EditsOf(const nb::object& edits) : bias(edits.attr("bias")), banned(edits.attr("banned")), seen(edits.attr("seen")) {
        mask = named<std::optional<Bits>>(edits, "mask");
        const nb::object more = edits.attr("boost");
        if (more.is_none()) return;
        boost = named<Bits>(more, "bits");
        deltas = named<Array<float, 1>>(more, "deltas");
    }
    EditsView view(size_t rows, size_t vocab) const {
        EditsView found{.bias = bias.view(rows), .banned = banned.view(rows), .seen = seen.view(rows)};
        if (mask) found.mask = bits_of(*mask, rows, vocab);
        if (!boost) return found;
        found.boost = bits_of(*boost, rows, vocab);
        if (deltas->shape(0) != rows) throw std::invalid_argument("arrays of a sampling batch differ in length");
        found.deltas = deltas->data();
        return found;
    }
};

// kernels.draws.Lifted: rows that share a table of sets, in which some are to be made.
struct LiftedOf {
    Result<uint32_t, 2> table;
    Ints lines;
    Array<float, 1> deltas;

    LiftedOf(const nb::object& lifted, int64_t vocab, OtherRows& others)
        : table(named<Result<uint32_t, 2>>(lifted, "table")), lines(named<Ints>(lifted, "lines")),
          deltas(named<Array<float, 1>>(lifted, "deltas")) {
        others.lifted = nb::cast<std::vector<int32_t>>(lifted.attr("places"));
        if (static_cast<int64_t>(table.shape(1)) != (vocab + 31) / 32) throw std::invalid_argument("a list has a bit for each token");
        if (lines.shape(0) != others.lifted.size() || deltas.shape(0) != others.lifted.size())
            throw std::invalid_argument("arrays of lifted rows differ in length");
        for (size_t i = 0; i < lines.shape(0); i++) line(lines.data()[i]);
        for (const auto& [seed, count, at] : nb::cast<std::vector<std::tuple<uint32_t, int64_t, int64_t>>>(lifted.attr("made"))) {
            if (count < 0 || count > vocab) throw std::invalid_argument("no such part of a vocabulary");
            others.lists.push_back({seed, count, line(at)});
        }
        others.boost = {.boost = table.data(), .deltas = deltas.data(), .lines = lines.data()};
    }
    uint32_t* line(int64_t at) const {
        if (at < 0 || at >= static_cast<int64_t>(table.shape(0))) throw std::invalid_argument("the table has no such line");
        return table.data() + static_cast<size_t>(at) * table.shape(1);
    }
};

struct ScoresOf {
    Result<double, 1> logprobs;
    Result<int64_t, 1> ranks;
    Result<int32_t, 2> top_tokens;
    Result<double, 2> top_logprobs;

    explicit ScoresOf(const nb::object& scores)
        : logprobs(named<Result<double, 1>>(scores, "logprobs")), ranks(named<Result<int64_t, 1>>(scores, "ranks")),
          top_tokens(named<Result<int32_t, 2>>(scores, "top_tokens")),
          top_logprobs(named<Result<double, 2>>(scores, "top_logprobs")) {}
    ScoresView view(size_t rows) const {
        const bool same = logprobs.shape(0) == rows && ranks.shape(0) == rows && top_tokens.shape(0) == rows &&
                          top_logprobs.shape(0) == rows && top_tokens.shape(1) == top_logprobs.shape(1);
        if (!same) throw std::invalid_argument("arrays of a sampling batch differ in length");
        return {.logprobs = logprobs.data(),
                .ranks = ranks.data(),
                .top_tokens = top_tokens.data(),
                .top_logprobs = top_logprobs.data(),
                .top = static_cast<int64_t>(top_tokens.shape(1))};
    }
};

const SampleParams* records_of(const Array<uint8_t, 1>& records, size_t rows) {
    if (records.shape(0) != rows * sizeof(SampleParams) || reinterpret_cast<uintptr_t>(records.data()) % alignof(SampleParams))
        throw std::invalid_argument("the rows' records have another layout");
    return reinterpret_cast<const SampleParams*>(records.data());
}

// Rows of these logits that a batch is drawn from: those of `which`, or all in order.
SampleBatch batch_of(const Sampler& sampler, const Array<float, 2>& logits, const std::optional<Ints>& which) {
    if (logits.shape(1) != static_cast<size_t>(sampler.vocab())) throw std::invalid_argument("the logits have another vocabulary");
    for (size_t i = 0; which && i < which->shape(0); i++)
        if (which->data()[i] < 0 || static_cast<size_t>(which->data()[i]) >= logits.shape(0))
            throw std::invalid_argument("a row to draw for has no logits");
    const size_t rows = which ? which->shape(0) : logits.shape(0);
    return {.logits = logits.data(),
            .rows = static_cast<int64_t>(rows),
            .vocab = sampler.vocab(),
            .which = which ? which->data() : nullptr};
}

// The tokens; what belongs to log-probabilities is written to the scores' arrays.
std::vector<int32_t> sample(Sampler& sampler, const Array<float, 2>& logits, const Array<uint8_t, 1>& records,
                            const Array<int64_t, 1>& positions, const nb::object& edits, const nb::object& scores,
                            const std::optional<Ints>& which) {
    SampleBatch batch = batch_of(sampler, logits, which);
    const auto rows = static_cast<size_t>(batch.rows);
    batch.params = records_of(records, rows);
    if (positions.shape(0) != rows) throw std::invalid_argument("arrays of a sampling batch differ in length");
    batch.positions = positions.data();
    std::optional<EditsOf> changes;
    std::optional<ScoresOf> asked;
    if (!edits.is_none()) batch.edits = changes.emplace(edits).view(rows, logits.shape(1));
    if (!scores.is_none()) batch.scores = asked.emplace(scores).view(rows);
    std::vector<int32_t> tokens(rows);
    batch.token = tokens.data();
    nb::gil_scoped_release release;
    sampler.sample(batch);
    return tokens;
}

// Of given tokens, what belongs to log-probabilities; a negative number in the place of one whose logits allow no draw.
std::vector<int32_t> score(Sampler& sampler, const Array<float, 2>& logits, const Ints& tokens, const nb::object& scores) {
    const ScoresOf asked(scores);
    SampleBatch batch = batch_of(sampler, logits, std::nullopt);
    if (tokens.shape(0) != logits.shape(0)) throw std::invalid_argument("arrays of a sampling batch differ in length");
    SampleParams all{};
    all.top_p = all.typical_p = 1.0;
    all.repetition_penalty = 1.0f;
    batch.scores = asked.view(logits.shape(0));
    all.num_logprobs = static_cast<int32_t>(batch.scores.top);
    const std::vector<SampleParams> params(logits.shape(0), all);
    const std::vector<int64_t> positions(logits.shape(0));
    std::vector<int32_t> known(logits.shape(0));
    batch.params = params.data(), batch.positions = positions.data();
    batch.given = tokens.data(), batch.token = known.data();
    nb::gil_scoped_release release;
    sampler.sample(batch);
    return known;
}

// Each number of a row's record: where it lies, and in how many bytes. And the bytes of all.
std::pair<std::vector<std::tuple<std::string, size_t, size_t>>, size_t> record_layout() {
#define NUMBER(name) {#name, offsetof(SampleParams, name), sizeof(SampleParams::name)}
    return {{NUMBER(seed), NUMBER(min_position), NUMBER(top_p), NUMBER(typical_p), NUMBER(temperature), NUMBER(min_p),
             NUMBER(repetition_penalty), NUMBER(frequency_penalty), NUMBER(presence_penalty), NUMBER(top_k),
             NUMBER(sample_index), NUMBER(num_logprobs)},
            sizeof(SampleParams)};
#undef NUMBER
}

// The decoder keeps the Python object alive, and so its arrays (kernels/draws.py: DecodeRows).
DecodeRows decode_rows(const nb::object& rows) {
    const auto tokens = named<Result<int32_t, 2>>(rows, "tokens");
    const auto lengths = named<Result<int64_t, 1>>(rows, "lengths");
    const auto pages = named<IntTable>(rows, "pages");
    const auto sliding = named<std::optional<IntTable>>(rows, "sliding_pages");
    const auto records = exactly<Array<uint8_t, 1>>(rows.attr("records").attr("view")("uint8"), "records");
    const size_t count = tokens.shape(0);
    if (lengths.shape(0) != count || pages.shape(0) != count)
        throw std::invalid_argument("the rows' arrays differ in length");
    if (sliding && (sliding->shape(0) != count || sliding->shape(1) != pages.shape(1)))
        throw std::invalid_argument("the rows' sliding pages have the shape of their pages");
    return {.tokens = tokens.data(),
            .tokens_width = static_cast<int64_t>(tokens.shape(1)),
            .lengths = lengths.data(),
            .num_rows = static_cast<int64_t>(count),
            .pages = pages.data(),
            .pages_width = static_cast<int64_t>(pages.shape(1)),
            .page_size = nb::cast<int64_t>(rows.attr("page_size")),
            .records = records_of(records, count),
            .sliding_pages = sliding ? sliding->data() : nullptr};
}

// asked, scored, lifted: kernels.draws.Asked, Scored and Lifted, or None.
std::vector<int32_t> decode(Decoder& decoder, const std::vector<int32_t>& rows, const std::vector<int32_t>& starts,
                            std::vector<int32_t> left, const nb::object& asked, const nb::object& scored,
                            const nb::object& lifted) {
    OtherRows others{.left = std::move(left)};
    nb::object refuses;
    std::optional<Array<uint32_t, 1>> mask;
    if (!asked.is_none()) {
        others.asked = nb::cast<std::vector<int32_t>>(asked.attr("places"));
        refuses = asked.attr("refuses");
        mask.emplace(named<Array<uint32_t, 1>>(asked, "mask"));
        if (mask->shape(0) != static_cast<size_t>(decoder.vocab() + 31) / 32)
            throw std::invalid_argument("a mask has a bit for each token of the vocabulary");
    }
    std::optional<ScoresOf> scores;
    if (!scored.is_none()) {
        others.scored = nb::cast<std::vector<int32_t>>(scored.attr("places"));
        others.scores = scores.emplace(scored.attr("scores")).view(others.scored.size());
    }
    std::optional<LiftedOf> boost;
    if (!lifted.is_none()) boost.emplace(lifted, decoder.vocab(), others);
    std::vector<int32_t> drawn;
    nb::gil_scoped_release release;
    std::optional<nb::gil_scoped_acquire> held; // from the first question on: each return may have to wait for others
    Refusal refusal;
    if (mask)
        refusal = [&](int64_t index, int32_t token) -> const uint32_t* {
            if (!held) held.emplace();
            return nb::cast<bool>(refuses(index, token)) ? mask->data() : nullptr;
        };
    decoder.step(rows, starts, others, refusal, drawn);
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
    m.def("record_layout", &record_layout);
    m.def("green_list", [](uint32_t seed, int64_t vocab, int64_t count, const Result<uint32_t, 1>& bits) {
        if (static_cast<int64_t>(bits.shape(0)) != (vocab + 31) / 32) throw std::invalid_argument("a list has a bit for each token");
        nb::gil_scoped_release release;
        static const Kernels* kernels = choose_kernels("auto"); // once: asking a virtual machine's CPU takes longer than a list
        green_list(*kernels->sample, seed, vocab, count, bits.data());
    }, "seed"_a, "vocab"_a, "count"_a, "bits"_a.noconvert());
    nb::class_<Sampler>(m, "Sampler")
        .def("__init__", [](Sampler* self, std::shared_ptr<Pool> pool, const std::string& isa, int64_t vocab) {
            new (self) Sampler(std::move(pool), choose_kernels(isa), vocab);
        }, nb::kw_only(), "pool"_a, "isa"_a, "vocab"_a)
        .def("sample", &sample, "logits"_a.noconvert(), "records"_a.noconvert(), "positions"_a.noconvert(),
             "edits"_a.none() = nb::none(), "scores"_a.none() = nb::none(), "which"_a.none().noconvert() = nb::none())
        .def("score", &score, "logits"_a.noconvert(), "tokens"_a.noconvert(), "scores"_a);
    nb::class_<Decoder>(m, "Decoder")
        .def("__init__", [](Decoder* self, Builder& program, Sampler& sampler, const nb::object& rows) {
            new (self) Decoder(program.program(), sampler, decode_rows(rows));
        }, nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>(), "program"_a, "sampler"_a, "rows"_a)
        .def_prop_ro("forward_s", &Decoder::forward_s)
        .def_prop_ro("drawing_s", &Decoder::drawing_s)
        .def_prop_ro("chosen", &Decoder::chosen)
        .def_prop_ro("taken_up", &Decoder::taken_up)
        .def_prop_rw("ahead", &Decoder::ahead, &Decoder::set_ahead)
        .def("step", &decode, "rows"_a, "starts"_a, "left"_a = std::vector<int32_t>(), "asked"_a.none() = nb::none(),
             "scored"_a.none() = nb::none(), "lifted"_a.none() = nb::none())
        .def("verify", [](Decoder& decoder, const std::vector<int32_t>& rows, const std::vector<int32_t>& starts,
                          const Drafts& drafts) {
            std::vector<std::vector<int32_t>> drawn;
            nb::gil_scoped_release release;
            decoder.verify(rows, starts, drafts, drawn);
            return drawn;
        }, "rows"_a, "starts"_a, "drafts"_a)
        .def("logits", [](nb::handle self) {
            const auto& decoder = nb::cast<Decoder&>(self);
            const size_t shape[2] = {static_cast<size_t>(decoder.logit_rows()), static_cast<size_t>(decoder.vocab())};
            return nb::ndarray<nb::numpy, float>(decoder.logits(), 2, shape, self);
        })
        .def("redraw", &redraw, "indices"_a, "mask"_a.noconvert());
}

} // namespace octavo
