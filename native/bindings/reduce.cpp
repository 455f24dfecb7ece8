#include "bind.hpp"

void bind_reduce(nanobind::module_& m) { (void)m; }
