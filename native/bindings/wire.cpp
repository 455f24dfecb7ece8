#include "bind.hpp"

void bind_wire(nanobind::module_& m) { (void)m; }
