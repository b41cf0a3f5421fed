// An op as it was recorded (kernels/program.py): its buffers in order, its other arguments by the names that they
// have in kernels/operations.py. Each *_op.cpp says of its own ops how they are made of that.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "program.h"

namespace octavo {

using Weights = std::shared_ptr<PackedMatrix>;

struct Numbers { // f32 in C order, which the owner keeps alive; data null: None
    const float* data = nullptr;
    std::vector<int64_t> shape;
    std::shared_ptr<const void> owner;
};

struct KVLayer { // the pages of one layer
    std::shared_ptr<KVCache> cache;
    size_t index;

    const KVView& view() const { return cache->layer(index); }
};

// The fields of a struct have names of their own, as "spec.window"; those of a struct that is None are None.
class Arguments {
public:
    using Value = std::variant<std::monostate, bool, int64_t, double, Numbers, std::vector<Weights>, KVLayer>;

    explicit Arguments(std::map<std::string, Value> values) : values_(std::move(values)) {}

    // Whether it is there and is not None.
    bool has(const std::string& name) const;
    // All of these throw std::invalid_argument where the op has no argument of that name and kind.
    bool flag(const std::string& name) const;
    int64_t integer(const std::string& name, int64_t of_none = 0) const;
    float number(const std::string& name, float of_none = 0.0f) const;
    template <class E> E choice(const std::string& name) const { return static_cast<E>(integer(name)); }
    const Numbers& numbers(const std::string& name) const;
    const float* floats(const std::string& name) const { return numbers(name).data; }
    const std::vector<Weights>& weights(const std::string& name) const;
    const Weights& weight(const std::string& name) const; // of one layout
    const KVLayer& layer(const std::string& name) const;

private:
    const Value& find(const std::string& name) const;
    template <class T> const T& get(const std::string& name) const;

    std::map<std::string, Value> values_;
};

struct Call {
    const Arguments& args; // they outlive the program
    std::vector<Buffer> inputs;
    Buffer output;
    int64_t workspace; // arena offset
};

// A name of kernels/operations.py, and what it is made into. A constant of this type makes it known.
class OpType {
public:
    using Make = void (*)(const Call&, Program&); // throws std::invalid_argument
    using Workspace = size_t (*)(const Arguments&, int64_t rows); // bytes needed for so many rows of the output

    OpType(const char* name, Make make, Workspace workspace = nullptr);
    // Throws std::invalid_argument where there is none.
    static const OpType& of(const std::string& name);

    const Make make;
    size_t workspace(const Arguments& args, int64_t rows) const { return workspace_ ? workspace_(args, rows) : 0; }

private:
    const Workspace workspace_;
};

} // namespace octavo
