#include "attention_impl.h"

namespace infopt {

void paged_attention_bf16(const AttentionArgs& args) { PagedAttention<bf16>(args).run(); }

}  // namespace infopt
