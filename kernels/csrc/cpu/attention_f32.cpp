#include "attention_impl.h"

namespace infopt {

template <>
void paged_attention<float>(const AttentionArgs& args) {
  PagedAttention<float>(args).run();
}

}  // namespace infopt
