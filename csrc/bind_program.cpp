#include "bind_program.h"

#include "reading.h"

namespace octavo {
namespace {

template <class T, int N> std::optional<Array<T, N>> if_there(nb::handle from, const char* name) {
    return from.is_none() || from.attr(name).is_none() ? std::nullopt : std::optional(in_order<T, N>(from, name));
}

template <class A> int64_t size(const A& a, size_t axis = 0) { return static_cast<int64_t>(a.shape(axis)); }
template <class A> auto data(const std::optional<A>& a) { return a ? a->data() : nullptr; }

void require(bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(what);
}

// As kernels/cpu_lower.py codes it.
Arguments::Value value_of(nb::handle value, const char* name) {
    if (value.is_none()) return {};
    if (nb::isinstance<nb::bool_>(value)) return nb::cast<bool>(value);
    if (nb::isinstance<nb::int_>(value)) return nb::cast<int64_t>(value);
    if (nb::isinstance<nb::float_>(value)) return nb::cast<double>(value);
    if (nb::isinstance<nb::list>(value)) return nb::cast<std::vector<Weights>>(value);
    if (nb::isinstance<KVLayer>(value)) return nb::cast<KVLayer>(value);
    auto array = std::make_shared<const Floats>(exactly<Floats>(value, name));
    std::vector<int64_t> shape;
    for (size_t axis = 0; axis < array->ndim(); axis++) shape.push_back(size(*array, axis));
    return Numbers{.data = array->data(), .shape = std::move(shape), .owner = std::move(array)};
}

std::map<std::string, Arguments::Value> values_of(const nb::dict& from) {
    std::map<std::string, Arguments::Value> found;
    for (const auto& [key, value] : from) {
        const auto name = nb::cast<std::string>(key);
        found.emplace(name, value_of(value, name.c_str()));
    }
    return found;
}

} // namespace

NamedOp::NamedOp(const std::string& name, const nb::dict& values)
    : type(&OpType::of(name)), args(std::make_shared<const Arguments>(values_of(values))) {}

BatchArrays::BatchArrays(nb::handle batch)
    : token_ids_(in_order<int32_t, 1>(batch, "token_ids")), positions_(in_order<int32_t, 1>(batch, "positions")),
      slots_(in_order<int32_t, 1>(batch, "slots")), query_start_(in_order<int32_t, 1>(batch, "query_start")),
      context_lens_(in_order<int32_t, 1>(batch, "context_lens")), sampled_(in_order<int32_t, 1>(batch, "sampled")),
      page_tables_(in_order<int32_t, 2>(batch, "page_tables")), cross_lens_(if_there<int32_t, 1>(batch, "cross_lens")),
      sliding_slots_(if_there<int32_t, 1>(batch, "sliding_slots")),
      cross_tables_(if_there<int32_t, 2>(batch, "cross_tables")),
      sliding_tables_(if_there<int32_t, 2>(batch, "sliding_tables")),
      tree_masks_(if_there<uint64_t, 2>(batch, "tree_masks")) {
    const nb::object extras = batch.attr("extras");
    if (!extras.is_none()) {
        rope_positions_ = if_there<int32_t, 1>(extras, "rope_positions");
        replaced_ = if_there<int32_t, 1>(extras, "replaced");
        replaced_rows_ = if_there<float, 2>(extras, "rows");
    }
    check();
}

void BatchArrays::check() const {
    const int64_t tokens = size(token_ids_), sequences = size(context_lens_);
    require(size(positions_) == tokens && size(slots_) == tokens, "token_ids, positions and slots differ in length");
    require(size(query_start_) == sequences + 1 && size(page_tables_) == sequences,
            "query_start, context_lens and page_tables differ in length");
    if (cross_lens_ && cross_tables_)
        require(size(*cross_lens_) == sequences && size(*cross_tables_) == sequences,
                "cross_lens, cross_tables and context_lens differ in length");
    if (tree_masks_)
        require(size(*tree_masks_) == tokens && size(*tree_masks_, 1) >= 1, "tree_masks has a row of words for each token");
    if (sliding_slots_ && sliding_tables_)
        require(size(*sliding_slots_) == tokens && size(*sliding_tables_) == sequences &&
                    size(*sliding_tables_, 1) == size(page_tables_, 1),
                "sliding_slots and sliding_tables have the shapes of slots and page_tables");
    if (rope_positions_) require(size(*rope_positions_) == tokens, "rope_positions has a position for each token");
    require(replaced_.has_value() == replaced_rows_.has_value(), "replaced tokens come with their rows");
    if (replaced_) require(size(*replaced_) == size(*replaced_rows_), "replaced and rows differ in length");
}

BatchView BatchArrays::view(int64_t given_rows) const {
    const bool cross = cross_lens_ && cross_tables_, sliding = sliding_slots_ && sliding_tables_;
    return {.token_ids = token_ids_.data(),
            .positions = positions_.data(),
            .slots = slots_.data(),
            .query_start = query_start_.data(),
            .context_lens = context_lens_.data(),
            .page_tables = page_tables_.data(),
            .sampled = sampled_.data(),
            .tokens = size(token_ids_),
            .sequences = size(context_lens_),
            .sampled_rows = size(sampled_),
            .table_width = size(page_tables_, 1),
            .cross_lens = cross ? cross_lens_->data() : nullptr,
            .cross_tables = cross ? cross_tables_->data() : nullptr,
            .cross_width = cross ? size(*cross_tables_, 1) : 0,
            .tree_masks = data(tree_masks_),
            .tree_words = tree_masks_ ? size(*tree_masks_, 1) : 0,
            .sliding_slots = sliding ? sliding_slots_->data() : nullptr,
            .sliding_tables = sliding ? sliding_tables_->data() : nullptr,
            .rope_positions = rope_positions_ ? rope_positions_->data() : positions_.data(),
            .replaced = data(replaced_),
            .replaced_rows = data(replaced_rows_),
            .replaced_count = replaced_ ? size(*replaced_) : 0,
            .replaced_width = replaced_rows_ ? size(*replaced_rows_, 1) : 0,
            .given_rows = given_rows};
}

void bind_program(nb::module_& m) {
    nb::class_<Limits>(m, "Limits")
        .def("__init__", [](Limits* self, int64_t tokens, int64_t sequences, int64_t sampled, int64_t table_width,
                            int64_t given) {
            new (self) Limits{.tokens = tokens, .sequences = sequences, .sampled = sampled, .table_width = table_width,
                              .given = given};
        }, nb::kw_only(), "tokens"_a, "sequences"_a, "sampled"_a, "table_width"_a, "given"_a = 0);
    nb::class_<Buffer>(m, "Buffer").def("__init__", [](Buffer* self, int rows, int64_t width, int64_t offset) {
        new (self) Buffer{.rows = static_cast<Rows>(rows), .width = width, .offset = offset};
    }, nb::kw_only(), "rows"_a, "width"_a, "offset"_a);
    nb::class_<NamedOp>(m, "Op")
        .def(nb::init<const std::string&, const nb::dict&>(), "name"_a, "args"_a)
        .def("workspace", [](const NamedOp& op, int64_t rows) { return op.type->workspace(*op.args, rows); }, "rows"_a);
    nb::class_<Builder>(m, "Program")
        .def(nb::init<std::shared_ptr<Pool>, const std::string&, const Limits&, int64_t>(), nb::kw_only(), "pool"_a,
             "isa"_a, "limits"_a, "nbytes"_a)
        .def("add", &Builder::add, nb::kw_only(), "op"_a, "inputs"_a, "output"_a, "workspace"_a)
        .def("set_result", &Builder::set_result)
        .def("replay", [](nb::handle self, nb::handle batch, int64_t given_rows) {
            return nb::cast<Builder&>(self).replay(batch, given_rows, self);
        }, "batch"_a, "given_rows"_a = 0)
        .def("only_read", [](Builder& self, std::optional<int64_t> ahead) {
            Program& program = self.program();
            program.only_read(ahead ? std::make_unique<const Kernels>(reading(program.kernels(), *ahead)) : nullptr);
        }, "ahead"_a.none())
        .def_prop_ro("replays", [](Builder& self) { return self.program().replays(); })
        .def("rows", [](nb::handle self, const Buffer& buffer) {
            return nb::cast<Builder&>(self).rows_of(buffer, self);
        })
        .def("memory", [](nb::handle self, const Buffer& buffer, int64_t rows) {
            return nb::cast<Builder&>(self).memory(buffer, rows, self);
        });
}

} // namespace octavo
