/* Formats of strings, as patterns. Where a format leaves spellings open, a common one is taken:
 * what is written is always valid. */
#include <string.h>

#include "common/grammar_impl.h"

#define YEAR "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
#define LEAP "(([0-9]{2}(0[48]|[2468][048]|[13579][26]))|((0[48]|[2468][048]|[13579][26])00))"
#define DATE \
    "(" YEAR "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|" \
    "02-(0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define CLOCK "([01][0-9]|2[0-3]):[0-5][0-9]"
#define TIME CLOCK ":[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]" CLOCK ")"

#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOST LABEL "(\\." LABEL ")*"
/* Those of an address's domain: without the bound, which would cost a state a character. */
#define WORD "[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
#define MAILBOX "[A-Za-z0-9_%+-]+(\\.[A-Za-z0-9_%+-]+)*"

#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4 BYTE "(\\." BYTE "){3}"
#define H "[0-9A-Fa-f]{1,4}"
#define TO(n) "(:" H "){1," n "}"
#define IPV6 \
    "((" H ":){7}" H "|(" H ":){1,7}:|(" H ":){1,6}:" H "|(" H \
    ":){1,5}" TO("2") "|(" H ":){1,4}" TO("3") "|(" H ":){1,3}" TO("4") "|(" H ":){1,2}" TO( \
        "5") "|" H ":" TO("6") "|:" TO("7") "|::)"

#define HEX "[0-9a-fA-F]"
#define URI_CHAR "([A-Za-z0-9._~:@!$&'()*+,;=/-]|%" HEX "{2})"
#define URI_TAIL "([A-Za-z0-9._~:@!$&'()*+,;=/?-]|%" HEX "{2})*"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"time", "^" TIME "$"},
    {"duration", "^P([0-9]{1,5}W|([0-9]{1,5}Y)?([0-9]{1,5}M)?[0-9]{1,5}D|([0-9]{1,5}Y)?[0-9]{1,5}M|"
                 "[0-9]{1,5}Y|([0-9]{1,5}D)?T([0-9]{1,5}H([0-9]{1,5}M([0-9]{1,5}S)?)?|"
                 "[0-9]{1,5}M([0-9]{1,5}S)?|[0-9]{1,5}S))$"},
    {"email", "^" MAILBOX "@" WORD "(\\." WORD ")+$"},
    {"hostname", "^" HOST "$"},
    {"ipv4", "^" IPV4 "$"},
    {"ipv6", "^" IPV6 "$"},
    {"uuid", "^" HEX "{8}(-" HEX "{4}){3}-" HEX "{12}$"},
    {"uri", "^[A-Za-z][A-Za-z0-9+.-]*://" URI_CHAR "+(\\?" URI_TAIL ")?(#" URI_TAIL ")?$"},
};

const char *gr_format_pattern(const char *format)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (strcmp(formats[i].name, format) == 0)
            return formats[i].pattern;
    }
    return NULL;
}
