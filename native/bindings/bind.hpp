// One bind_*() per noun; module.cpp calls them all. Glue only: no logic lives here.
#pragma once
#include <nanobind/nanobind.h>

void bind_wire(nanobind::module_& m);
void bind_reduce(nanobind::module_& m);
void bind_endpoint(nanobind::module_& m);
void bind_collective(nanobind::module_& m);
void bind_sim(nanobind::module_& m);
