// The Python class Program: ops added one by one, then replayed.
#pragma once
#include "bind.h"
#include "cpu.h"

namespace octavo {

// An op before it has a place: its name, and all but its buffers.
struct NamedOp {
    const OpType* type;
    std::shared_ptr<const Arguments> args;

    NamedOp(const std::string& name, const nb::dict& values);
};

// The arrays of a batch, taken by their names from a ForwardBatch (kernels/forward_batch.py), and held as long as
// this lives.
class BatchArrays {
public:
    // Throws std::invalid_argument where one is no array of its type or their lengths disagree.
    explicit BatchArrays(nb::handle batch);
    BatchView view(int64_t given_rows) const;

private:
    void check() const;

    Ints token_ids_, positions_, slots_, query_start_, context_lens_, sampled_;
    IntTable page_tables_;
    std::optional<Ints> cross_lens_, sliding_slots_, rope_positions_, replaced_;
    std::optional<IntTable> cross_tables_, sliding_tables_;
    std::optional<Masks> tree_masks_;
    std::optional<Array<float, 2>> replaced_rows_;
};

// A program as Python holds it.
class Builder {
public:
    Builder(std::shared_ptr<Pool> pool, const std::string& isa, const Limits& limits, int64_t arena_bytes)
        : program_(std::move(pool), choose_kernels(isa), limits, arena_bytes) {}

    void add(const NamedOp& op, std::vector<Buffer> inputs, const Buffer& output, int64_t workspace) {
        program_.hold(op.args);
        op.type->make({.args = *op.args, .inputs = std::move(inputs), .output = output, .workspace = workspace}, program_);
    }
    void set_result(const Buffer& result) { program_.set_result(result); }

    // The result as an array [rows, width] over the program's own memory. given_rows: of the Rows::Given buffers.
    nb::ndarray<nb::numpy, float> replay(nb::handle batch, int64_t given_rows, nb::handle self) {
        const BatchArrays arrays(batch);
        const BatchView view = arrays.view(given_rows);
        {
            nb::gil_scoped_release release;
            program_.replay(view);
        }
        return rows_of(program_.result(), self);
    }
    // Any buffer as an array: [rows of the last batch, width].
    nb::ndarray<nb::numpy, float> rows_of(const Buffer& buffer, nb::handle self) {
        const size_t shape[2] = {static_cast<size_t>(program_.rows(buffer.rows)), static_cast<size_t>(buffer.width)};
        return nb::ndarray<nb::numpy, float>(program_.at(buffer), 2, shape, self);
    }
    // A buffer's memory [rows, width], to fill before a replay. Throws std::invalid_argument for more rows than it has.
    nb::ndarray<nb::numpy, float> memory(const Buffer& b, int64_t rows, nb::handle self) {
        if (rows < 0 || rows > program_.limits().rows(b.rows))
            throw std::invalid_argument("there is no memory for so many rows of this kind");
        const size_t shape[2] = {static_cast<size_t>(rows), static_cast<size_t>(b.width)};
        return nb::ndarray<nb::numpy, float>(program_.at(b), 2, shape, self);
    }

    Program& program() { return program_; }

private:
    Program program_;
};

} // namespace octavo
