"""Status of each object: reports, status patches and events from the facts of a pass.

`report.report` calls the builder of the object's kind; `status_writer` compares the reports with the cluster.

`report`              status of any object; objects being deleted, or not compiled yet
`situation`           `Situation` in, `Report` out, and verdicts that several builders share
`site_report`         SosSite and its nodes
`interfaces`          condition InterfacesAttached: uplinks and LAN interfaces of a site's nodes
`agent_report`        SosAgent
`controller_report`   SosController
`peer_report`         SosPeer
`service_report`      SosService and SosLink
`acceleration`        condition Accelerating: actual acceleration of a service's connections
`direct_agents`       verdicts about agents without a controller, from their own answers
`overlaps`            conditions of services that cover the same connections
`status_writer`       writes of changed statuses, and their events
"""
