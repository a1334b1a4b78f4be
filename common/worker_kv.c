#include "common/worker_kv.h"

#include <string.h>

#include "common/worker_impl.h"

td_status td_worker_kv_wire(const td_worker_options *opt, td_kv_wire_options *wire, td_error *err)
{
    const td_ops *ops;
    int32_t devices[TD_KV_MAX_RANKS];
    td_status st = td_ops_find(td_backend_words[opt->backend], &ops, err);

    if (st == TD_OK)
        st = worker_devices(opt, ops, devices, err);
    if (st != TD_OK)
        return st;
    *wire = (td_kv_wire_options){
        .transport = td_kv_transport_words[opt->kv_transport],
        .query_event = td_event_query,
        .use_device = ops->dev_use,
    };
    return td_kv_wire_check(wire, ops->dev_memory ? TD_KV_CUDA : TD_KV_HOST, devices[0], err);
}

td_kv_region td_worker_kv_region(const td_worker_options *opt, const td_model *m, int32_t rank)
{
    const td_ops *ops;
    int32_t devices[TD_KV_MAX_RANKS] = {0};
    td_error err = {0};

    /* Both have succeeded before this model was loaded. */
    td_assert(td_ops_find(td_backend_words[opt->backend], &ops, &err) == TD_OK &&
              worker_devices(opt, ops, devices, &err) == TD_OK);
    return (td_kv_region){.base = td_model_kv_base(m, rank),
                          .bytes = td_model_kv(m)->region_bytes,
                          .memory = ops->dev_memory ? TD_KV_CUDA : TD_KV_HOST,
                          .device = devices[rank]};
}
