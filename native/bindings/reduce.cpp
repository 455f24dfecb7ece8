#include "bind.hpp"

#include <cstdint>
#include <cstring>
#include <optional>

#include "farstep/reduce.hpp"

namespace nb = nanobind;

namespace {

/// Below this many bytes the work is shorter than handing the interpreter lock over and back.
constexpr std::uint64_t release_lock_bytes = 16384;

farstep::ElementType element_type(int type) {
    if (type < 0 || type >= farstep::num_element_types) throw nb::value_error("element type is out of range");
    return static_cast<farstep::ElementType>(type);
}

void reduce_into(std::uint64_t out, std::uint64_t left, std::uint64_t right, std::uint64_t count, int type,
                 int op) {
    if (op < 0 || op >= farstep::num_reductions) throw nb::value_error("reduction is out of range");
    const auto kernel = farstep::combine_kernel(element_type(type), static_cast<farstep::Reduction>(op));
    if (kernel == nullptr) throw nb::value_error("this reduction has no meaning for this element type");
    std::optional<nb::gil_scoped_release> unlocked;
    if (count * farstep::element_bytes(element_type(type)) >= release_lock_bytes) unlocked.emplace();
    kernel(reinterpret_cast<void*>(out), reinterpret_cast<const void*>(left),
           reinterpret_cast<const void*>(right), count);
}

void divide_in_place(std::uint64_t values, std::uint64_t count, int type, std::uint32_t divisor) {
    if (divisor == 0) throw nb::value_error("divisor is 0; it must be at least 1");
    const farstep::ElementType element = element_type(type);
    bool is_divided = false;
    {
        std::optional<nb::gil_scoped_release> unlocked;
        if (count * farstep::element_bytes(element) >= release_lock_bytes) unlocked.emplace();
        is_divided = farstep::divide_in_place(element, reinterpret_cast<void*>(values), count, divisor);
    }
    if (!is_divided) throw nb::value_error("only floating-point elements can be divided");
}

void copy_bytes(std::uint64_t target, std::uint64_t source, std::uint64_t length_bytes) {
    std::optional<nb::gil_scoped_release> unlocked;
    if (length_bytes >= release_lock_bytes) unlocked.emplace();
    if (length_bytes != 0) {
        std::memmove(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), length_bytes);
    }
}

}  // namespace

void bind_reduce(nb::module_& m) {
    using namespace nb::literals;
    m.def("reduce_into", &reduce_into, "out_address"_a, "left_address"_a, "right_address"_a, "count"_a,
          "element_type"_a, "reduction"_a,
          "Stores left (op) right for count elements; out may be left or right. Addresses are not checked.");
    m.def("divide_in_place", &divide_in_place, "address"_a, "count"_a, "element_type"_a, "divisor"_a,
          "Divides count floating-point elements by a whole number, rounding once.");
    m.def("copy_bytes", &copy_bytes, "target_address"_a, "source_address"_a, "length_bytes"_a,
          "Copies bytes with the interpreter lock released if there are many. Addresses are not checked.");
}
