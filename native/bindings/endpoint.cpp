#include "bind.hpp"

void bind_endpoint(nanobind::module_& m) { (void)m; }
