/* The tools that gpt-oss was trained to use by itself, as their sections stand in the system
 * message.
 *
 * This is data of the format, not prose of ours: the bytes are those that openai-harmony 0.0.8
 * (Apache-2.0) renders for its tool namespaces "browser" and "python", because a prompt helps only
 * if the model knows it. test_harmony_render.c holds them to their SHA-256, harmony_oracle.py to
 * the package. */
#ifndef TANDEM_ROUTER_HARMONY_BUILTIN_H
#define TANDEM_ROUTER_HARMONY_BUILTIN_H

/* clang-format off */
static const char harmony_browser_section[] =
    "## browser\n"
    "\n"
    "// Tool for browsing.\n"
    "// The `cursor` appears in brackets before each browsing display: `[{cursor}]`.\n"
    "// Cite information from the tool using the following format:\n"
    "// `【{cursor}†L{line_start}(-L{line_end})?】`, for example: `【6†L9-L11】` or `【8†L3】`.\n"
    "// Do not quote more than 10 words directly from the tool output.\n"
    "// sources=web (default: web)\n"
    "namespace browser {\n"
    "\n"
    "// Searches for information related to `query` and displays `topn` results.\n"
    "type search = (_: {\n"
    "query: string,\n"
    "topn?: number, // default: 10\n"
    "source?: string,\n"
    "}) => any;\n"
    "\n"
    "// Opens the link `id` from the page indicated by `cursor` starting at line number `loc`, "
    "showing `num_lines` lines.\n"
    "// Valid link ids are displayed with the formatting: `【{id}†.*】`.\n"
    "// If `cursor` is not provided, the most recent page is implied.\n"
    "// If `id` is a string, it is treated as a fully qualified URL associated with `source`.\n"
    "// If `loc` is not provided, the viewport will be positioned at the beginning of the "
    "document or centered on the most relevant passage, if available.\n"
    "// Use this function without `id` to scroll to a new location of an opened page.\n"
    "type open = (_: {\n"
    "id?: number | string, // default: -1\n"
    "cursor?: number, // default: -1\n"
    "loc?: number, // default: -1\n"
    "num_lines?: number, // default: -1\n"
    "view_source?: boolean, // default: false\n"
    "source?: string,\n"
    "}) => any;\n"
    "\n"
    "// Finds exact matches of `pattern` in the current page, or the page given by `cursor`.\n"
    "type find = (_: {\n"
    "pattern: string,\n"
    "cursor?: number, // default: -1\n"
    "}) => any;\n"
    "\n"
    "} // namespace browser";

/* No namespace: what goes to python is code, not arguments. */
static const char harmony_python_section[] =
    "## python\n"
    "\n"
    "Use this tool to execute Python code in your chain of thought. The code will not be shown "
    "to the user. This tool should be used for internal reasoning, but not for code that is "
    "intended to be visible to the user (e.g. when creating plots, tables, or files).\n"
    "\n"
    "When you send a message containing Python code to python, it will be executed in a stateful "
    "Jupyter notebook environment. python will respond with the output of the execution or time "
    "out after 120.0 seconds. The drive at '/mnt/data' can be used to save and persist user "
    "files. Internet access for this session is UNKNOWN. Depends on the cluster.";
/* clang-format on */

#endif
