/* Any JSON as the schema of a tool: a section of text that ends where it should, or a refusal for
 * its depth; and as compact JSON, which must read back. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "router/harmony_tools.h"
#include "tests/unit/harmony_fixture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char tail[] = ") => any;\n\n} // namespace functions";
    cJSON *root, *again;
    td_buf text = {0}, compact = {0};
    chat_tool *t;
    chat c;

    if (size < 1 || size > 4096 || (root = fixture_json((const char *)data + 1, size - 1)) == NULL)
        return 0;
    harmony_json_compact(&compact, root);
    again = cJSON_ParseWithLength(compact.ptr, compact.len);
    td_assert(again != NULL);
    cJSON_Delete(again);
    chat_init(&c);
    t = chat_add_tool(&c);
    t->name = chat_str(&c, "f");
    chat_set_parameters(&c, t, root);
    if (harmony_tools_section(&c, data[0] & 1, &text, NULL) == TD_OK && !cJSON_IsNull(root))
        td_assert(strcmp(text.ptr + text.len - (sizeof tail - 1), tail) == 0);
    chat_free(&c);
    td_buf_free(&text);
    td_buf_free(&compact);
    return 0;
}
