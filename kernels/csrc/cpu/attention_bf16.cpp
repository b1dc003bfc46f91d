#include "attention_impl.h"

namespace infopt {

template <>
void paged_attention<bf16>(const AttentionArgs& args) {
  PagedAttention<bf16>(args).run();
}

}  // namespace infopt
