#include "bind_program.h"

namespace octavo {

void bind_program(nb::module_& m) {
    nb::class_<Builder>(m, "Program")
        .def(nb::init<std::shared_ptr<Pool>, const std::string&, std::tuple<int64_t, int64_t, int64_t, int64_t>, int64_t>())
        .def("embed", &Builder::embed)
        .def("embed_positions", &Builder::embed_positions)
        .def("gather", &Builder::gather)
        .def("pool", &Builder::pool)
        .def("norm", &Builder::norm)
        .def("act_mul", &Builder::act_mul)
        .def("add", &Builder::add)
        .def("gate_rows", &Builder::gate_rows)
        .def("linear", &Builder::linear, "x"_a, "y"_a, "column"_a, "weight"_a, "norm"_a, "bias"_a.none(), "activation"_a,
             "residual"_a.none(), "scale"_a, "softcap"_a, "prepared"_a)
        .def("moe", &Builder::moe)
        .def("rotary_append", &Builder::rotary_append, "qkv"_a, "q"_a, "cache"_a, "layer"_a, "heads"_a, "cos"_a.none(),
             "sin"_a.none(), "interleaved"_a, "q_norm"_a.none(), "k_norm"_a.none(), "eps"_a)
        .def("head_linear", &Builder::head_linear)
        .def("latent_append", &Builder::latent_append)
        .def("attention", &Builder::attention, "q"_a, "y"_a, "cache"_a, "layer"_a, "heads"_a, "scale"_a, "softcap"_a,
             "window"_a, "slopes"_a.none(), "sinks"_a.none(), "sight"_a, "bias"_a.none())
        .def("set_result", &Builder::set_result)
        .def("replay", [](nb::handle self, const Ints& token_ids, const Ints& positions, const Ints& slots,
                          const Ints& query_start, const Ints& context_lens, const IntTable& page_tables,
                          const Ints& sampled, const std::optional<Ints>& cross_lens,
                          const std::optional<IntTable>& cross_tables, const std::optional<Masks>& tree_masks,
                          const std::optional<Ints>& local_slots, const std::optional<IntTable>& local_tables) {
            return nb::cast<Builder&>(self).replay(token_ids, positions, slots, query_start, context_lens, page_tables,
                                                   sampled, cross_lens, cross_tables, tree_masks, local_slots,
                                                   local_tables, self);
        }, "token_ids"_a, "positions"_a, "slots"_a, "query_start"_a, "context_lens"_a, "page_tables"_a,
             "sampled"_a, "cross_lens"_a.none(), "cross_tables"_a.none(), "tree_masks"_a.none(),
             "local_slots"_a.none() = nb::none(), "local_tables"_a.none() = nb::none())
        .def("memory", [](nb::handle self, const BufferTuple& buffer, int64_t rows) {
            return nb::cast<Builder&>(self).memory(buffer, rows, self);
        });
}

} // namespace octavo
