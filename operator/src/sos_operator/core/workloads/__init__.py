"""Users' pods and Services that SosServices select or name; the edge that reads them is in `cluster`.

`client_pods`           pods that services select as clients (spec.from.pods), and the cache of a list and a watch
`kubernetes_services`   Services that services name as their destination (spec.to.service)
"""
