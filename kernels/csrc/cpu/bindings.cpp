// The Python module: the only unit that is compiled against torch.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bind_experts.h"
#include "bind_linear.h"
#include "bind_pages.h"
#include "bind_rows.h"
#include "bind_router.h"
#include "bind_sampling.h"
#include "bind_sparse.h"
#include "bind_stack.h"

namespace py = pybind11;

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("attention", &infopt::attention, py::arg("q"), py::arg("keys"), py::arg("values"),
        py::arg("rows"), py::arg("block_tables"), py::arg("prefill_starts"),
        py::arg("num_decodes"), py::arg("window"), py::arg("scale"), py::arg("softcap"),
        py::arg("quantized") = py::none(), py::arg("quantized_tables") = py::none());
  m.def("quantize_pages", &infopt::quantize_pages_op);
  m.def("add_rms_norm", &infopt::add_rms_norm_op);
  m.def("gated_activation", &infopt::gated_activation_op);
  m.def("rotary_and_write", &infopt::rotary_and_write_op);
  m.def("pack_linear", &infopt::pack_linear);
  m.def("linear", &infopt::linear);
  m.def("pack_codes", &infopt::pack_codes_op);
  m.def("linear_quantized", &infopt::linear_quantized_op);
  m.def("pack_fp8", &infopt::pack_fp8_op);
  m.def("linear_fp8", &infopt::linear_fp8_op);
  m.def("draw_tokens", &infopt::draw_tokens_op);
  m.def("route", &infopt::route_op);
  m.def("add_shared", &infopt::add_shared_op);
  // Local: libraries for several instruction sets may be loaded side by side.
  const pybind11::module_local local;
  pybind11::class_<infopt::PackedProduct>(m, "PackedProduct", local)
      .def_static("dense", &infopt::PackedProduct::dense)
      .def_static("codes", &infopt::PackedProduct::codes)
      .def_static("fp8", &infopt::PackedProduct::fp8);
  pybind11::class_<infopt::DecoderStack>(m, "DecoderStack", local)
      .def(pybind11::init<const infopt::Tensor&, double, double, double, double,
                          const std::string&, const infopt::Tensor&>())
      .def("add_layer", &infopt::DecoderStack::add_layer)
      .def("forward", &infopt::DecoderStack::forward);
  pybind11::class_<infopt::Experts>(m, "Experts", local)
      .def(pybind11::init<const std::vector<infopt::PackedProduct>&,
                          const std::vector<infopt::PackedProduct>&, const std::string&,
                          const infopt::Tensor&>())
      .def("forward", &infopt::Experts::forward);
  pybind11::class_<infopt::SparseMlp, std::shared_ptr<infopt::SparseMlp>>(m, "SparseMlp", local)
      .def(pybind11::init<const infopt::Experts&, const infopt::PackedProduct&,
                          const std::optional<infopt::Tensor>&, const infopt::RoutingTuple&,
                          const std::vector<infopt::PackedProduct>&, bool>());
  m.def("amx_available", &infopt::amx_available);
}
