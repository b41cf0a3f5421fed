// Texts that drafts come from, for Python.
#include "bind.h"
#include "text_index.h"

namespace octavo {

void bind_text(nb::module_& m) {
    nb::class_<TextIndex>(m, "NativeTextIndex")
        .def(nb::init<std::vector<int>, int64_t>(), "levels"_a, "capacity"_a)
        .def("extend", &TextIndex::extend, "tokens"_a)
        .def("forget_before", &TextIndex::forget_before, "place"_a)
        .def("tail", &TextIndex::tail, "count"_a)
        .def("matches", &TextIndex::matches, "keys"_a, "tail"_a, "most"_a)
        .def("token", &TextIndex::token, "place"_a)
        .def("following", &TextIndex::following, "place"_a, "count"_a)
        .def("__len__", [](const TextIndex& text) { return text.count() - text.first(); })
        .def_prop_ro("count", &TextIndex::count)
        .def_prop_ro("first", &TextIndex::first)
        .def_prop_ro("keys", &TextIndex::keys)
        .def_prop_ro("nbytes", &TextIndex::nbytes);
}

} // namespace octavo
